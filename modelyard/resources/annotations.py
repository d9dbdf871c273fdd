"""Names of annotations that several packages read or write."""

from __future__ import annotations

from typing import Final

WAKE_QUERY: Final = "modelyard.dev/wake-query"
"""PromQL for the demand that waits while nothing runs. A Model's bindings carry it on."""
SCALE_TO_ZERO_GRACE: Final = "modelyard.dev/scale-to-zero-grace"
"""Idle time before the last instance is removed, a Go duration (default: 30s), or one for each target:
``llama-a100=5m,llama-h100=30s``."""
ROLE_RATIO: Final = "modelyard.dev/role-ratio"
"""Of a binding: the binding of the other role, and how many replicas of this one there are for one of that one, at
least and at most ("llama-decode=1/4..1"; one number: exactly). Of a Model with backends whose roles a policy scales:
the same for prefill and decode (``1/4..1``); without it as the backend's own workers have them."""
