"""What the tasks and the shift need of a loop: the shape of ``modelyard.autoscaling.live.tick.Loop`` and of the
cluster's Lease.

Protocols rather than the classes, so that a shift can be driven by any loop, and Prefect sees opaque objects only.
"""

from __future__ import annotations

from typing import Any, Protocol


class LeaseHandle(Protocol):
    """A renewable claim to be the one writer."""

    @property
    def held(self) -> bool:
        """Whether the claim is good at this very moment."""
        ...

    async def acquire(self, timeout: float) -> bool:
        """Try for up to ``timeout`` seconds; renewed in the background from then on."""
        ...

    async def release(self) -> None:
        """Give the claim up at once, so that a successor need not wait for it to expire."""
        ...


class TickSpace(Protocol):
    """The workspace of one tick, filled by the stages."""

    number: int


class Stages(Protocol):
    """The four stages of a tick and the Lease that guards two of them.

    The tick is ``Any`` because only the loop that made it may look inside.
    """

    async def collect(self, tick: Any) -> dict[str, Any]:
        """Read the world."""
        ...

    def decide(self, tick: Any) -> dict[str, Any]:
        """Decide; pure."""
        ...

    async def actuate(self, tick: Any) -> dict[str, Any]:
        """Write the decisions."""
        ...

    async def report(self, tick: Any) -> dict[str, Any]:
        """Tell people; returns the tick's table under ``rows`` and what moved under ``changes``."""
        ...

    def lease(self, name: str, namespace: str | None = None) -> LeaseHandle:
        """The Lease of this name; not yet acquired."""
        ...

    async def wait_for_change(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds for somebody to change what this loop is responsible for."""
        ...
