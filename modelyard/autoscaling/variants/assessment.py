"""What ``targets`` asks of an analysis, whatever it measures load and capacity in.

The percentage analysis counts in replicas, the token analysis in tokens; the rules from there to targets are the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from modelyard.autoscaling.variants.state import State


class Assessment(Protocol):
    """The load of one model and what its replicas can carry.

    ``reporting`` and ``warming`` are replicas; ``lost`` is what replicas that are there and serve nothing would be
    worth; ``scale_up`` and ``scale_down_safe`` are the verdicts on the present load, ``what_is_short`` the reason code.
    """

    @property
    def reporting(self) -> int:
        """Replicas that report."""
        ...

    @property
    def warming(self) -> int:
        """Replicas that are there and take no load yet."""
        ...

    @property
    def lost(self) -> float:
        """What replicas that serve nothing would be worth."""
        ...

    @property
    def scale_up(self) -> bool:
        """Whether capacity is short."""
        ...

    @property
    def scale_down_safe(self) -> bool:
        """Whether some replica could go."""
        ...

    @property
    def what_is_short(self) -> str:
        """The reason code of a scale-up."""
        ...

    @property
    def waiting(self) -> float:
        """Requests that wait, in engines and at the gateway."""
        ...

    @property
    def unit(self) -> str:
        """What sizes are counted in, for messages."""
        ...

    def worth(self, state: State) -> float:
        """What one replica of the variant is worth; 0 when that is not known."""
        ...

    def wanted(self, factor: float = 1.0) -> float:
        """What ``factor`` times the load needs."""
        ...

    def short_of(self, provided: float, factor: float) -> bool:
        """Whether ``provided`` would be too little for ``factor`` times the load."""
        ...

    def fits(self, removed: Mapping[str, int], factor: float = 1.0) -> bool:
        """Whether ``factor`` times the load fits without the ``removed`` replicas (variant name to count)."""
        ...

    def numbers(self) -> str:
        """The numbers for messages."""
        ...
