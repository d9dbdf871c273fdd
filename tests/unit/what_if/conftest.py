"""Fleets are made as for the decision's own tests."""

from __future__ import annotations

import sys
from pathlib import Path

UNIT = Path(__file__).parent.parent
sys.path[:0] = [str(UNIT / folder) for folder in ("autoscaling", "slo", "policies")]
