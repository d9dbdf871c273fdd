"""What would be decided if something were different: assumptions in, an imagined fleet and its decisions out. Pure.

``imagine`` turns a fleet and its settings into the ones asked about; the decision knows nothing of it. ``settle`` lets
the decision run in virtual time until nothing changes any more.
"""

from modelyard.autoscaling.what_if.assumptions import Assumptions, Imagined, imagine, parse
from modelyard.autoscaling.what_if.errors import WhatIfError
from modelyard.autoscaling.what_if.settle import End, Move, Settled, settle
