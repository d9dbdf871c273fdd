"""Real traffic for a demonstration: read a trace, replay it in compressed time, measure what the clients see.

``trace`` reads and shapes recorded traffic, ``router`` chooses among the ready endpoints, ``client`` sends one
request, ``replay`` ties them together, ``latency`` sums up. Knows nothing of Kubernetes: where the endpoints are is a
callback.
"""
