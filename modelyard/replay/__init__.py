"""Replay of recorded traffic against a simulated fleet in virtual time, steered by the real decision code.

Answers "what would this policy have cost, and would users have noticed?" in seconds. ``trace`` reads the traffic,
``variants`` takes the fleet from manifests, ``fleet`` simulates it, ``metrics`` is what Prometheus would have sampled,
``policies`` decide, ``clairvoyant`` bounds what any policy can reach, ``report`` and ``output`` say how it went. No
clock, no network; everything is equal for equal seeds.
"""

from modelyard.replay.request import ReplayRequest
