"""Driving the local cluster with recorded traffic, as the demonstration and the benchmarks do."""
