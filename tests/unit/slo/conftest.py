"""Makes ``slo_builders`` and the builders of the saturation form importable: test folders are no packages."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "autoscaling"))
