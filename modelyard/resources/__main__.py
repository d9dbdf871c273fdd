"""``python -m modelyard.resources``: generate the CRDs, or check them."""

import sys

from modelyard.resources.crd import main

sys.exit(main())
