"""Who scales in a replay: the real decision code, and what it is compared with.

Each policy is asked every ``interval`` seconds for replicas by variant. ``parse`` makes them from the command line.
"""

from modelyard.replay.policies.base import Fixed, Policy
from modelyard.replay.policies.bindings import remarks
from modelyard.replay.policies.parse import CLAIRVOYANT, PolicyText, make, split
