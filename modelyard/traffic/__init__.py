"""Traffic and its latencies: one trace, one router, one client, one summary.

``trace`` reads and shapes recorded traffic, ``router`` chooses among what is ready, ``replay`` sends a whole trace to
real endpoints in compressed time, ``latency`` sums up what clients saw. Knows nothing of Kubernetes: where the
endpoints are is a callback.
"""

from modelyard.traffic.copies import Copies
from modelyard.traffic.router import Endpoint, Router, Routing
