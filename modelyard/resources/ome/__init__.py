"""``ome.io/v1beta1``: models, serving runtimes, inference services and benchmarks.

Source: the published ome.io/v1beta1 reference. It marks many fields as required that the system itself does not
require; which, and why, is listed with the tests of the CRDs.
"""
