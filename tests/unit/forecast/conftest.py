"""Makes the builders of fleets importable: test folders are no packages."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "autoscaling"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tokens"))
