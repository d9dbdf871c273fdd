"""Whether this process may still write: asked before every write, and the bound on how long one may take."""

from __future__ import annotations

import math
from collections.abc import Callable


class NotTheWriter(Exception):
    """The right to write was lost in the middle of the work: stop writing at once."""


class Fence:
    """How long this process may go on writing.

    ``remaining`` gives the seconds for which that is certain (infinite without a Lease). A request that outlived the
    Lease could otherwise put an old decision over the next writer's.
    """

    def __init__(self, remaining: Callable[[], float] = lambda: math.inf) -> None:
        self._remaining = remaining

    def check(self) -> float | None:
        """Seconds the next write may take (``None``: the usual). Raises ``NotTheWriter``."""
        left = self._remaining()
        if left <= 0:
            raise NotTheWriter
        return None if math.isinf(left) else left
