"""A whole cluster on one machine: control plane, node agent, simulated engine, Prometheus.

`stack.LocalStack` is the way in for programs and tests, `modelyard local` (modelyard.cli.local) for people.
"""
