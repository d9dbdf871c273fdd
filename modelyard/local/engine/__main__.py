"""``python -m modelyard.local.engine``: run one simulated engine as a process."""

import sys

from modelyard.local.engine.cli import main

sys.exit(main())
