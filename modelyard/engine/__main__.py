"""``python -m modelyard.engine``: run one simulated engine as a process."""

import sys

from modelyard.engine.cli import main

sys.exit(main())
