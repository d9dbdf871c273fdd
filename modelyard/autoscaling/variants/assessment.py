"""The analysis behind ``targets``, in replicas (percentages) or tokens: the rules for targets are the same."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from modelyard.autoscaling.decisions import Evidence, Reason
from modelyard.autoscaling.variants.observation import Observation
from modelyard.autoscaling.variants.replicas import StuckPods


@dataclass(slots=True, kw_only=True)
class Assessment(ABC):
    """The load of one model and what its replicas can carry.

    ``reporting`` replicas say something, ``unready`` of them without being ready; ``saturated`` are over a threshold,
    ``incomplete`` miss a signal. Of the ready ones ``warming`` take no load yet and ``stuck`` serve nothing: what is
    not ready is under way, and late when it stays so. ``waiting`` is requests, in engines and at the gateway. ``unit``
    is what sizes are counted in, for messages.
    """

    unit: ClassVar[str] = ""
    reporting: int = 0
    unready: int = 0
    saturated: int = 0
    warming: int = 0
    stuck: int = 0
    incomplete: int = 0
    max_kv: float = 0.0
    waiting: float = 0.0
    spare_kv: float | None = None
    spare_queue: float | None = None
    scale_down_safe: bool = False
    young: dict[str, int] = field(default_factory=dict)
    """Ready replicas that take no load yet, by variant name."""
    stuck_pods: StuckPods = field(default_factory=dict)
    compute_limits: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    """By variant name: what its memory should hold from now on, where that changes."""

    @property
    @abstractmethod
    def scale_up(self) -> bool: ...

    @property
    @abstractmethod
    def what_is_short(self) -> Reason: ...

    @property
    @abstractmethod
    def lost(self) -> float:
        """What replicas that serve nothing would be worth."""

    @abstractmethod
    def worth(self, seen: Observation) -> float:
        """What one replica of the variant is worth; 0 when that is not known."""

    @abstractmethod
    def wanted(self, factor: float = 1.0) -> float: ...

    @abstractmethod
    def short_of(self, provided: float, factor: float) -> bool:
        """Whether ``provided`` would be too little for ``factor`` times the load."""

    @abstractmethod
    def fits(self, removed: Mapping[str, int], factor: float = 1.0) -> bool:
        """Whether ``factor`` times the load fits without the ``removed`` replicas (variant name to count)."""

    @abstractmethod
    def __str__(self) -> str: ...

    def with_counts(self, text: str, silent: int = 0, assumed: int = 0) -> str:
        """Return the text followed by the numbers of replicas that count less than others."""
        counts = (
            (self.unready, "not ready"),
            (self.warming, "warming up"),
            (self.stuck, "stuck and left out"),
            (silent, "ready without reporting, taken for average"),
            (self.incomplete, "with a signal missing"),
            (assumed, "whose cache size is not known and assumed"),
        )
        return ", ".join((text, *(f"{count} {what}" for count, what in counts if count)))

    def evidence(self, scale_down_safe: bool) -> Evidence:
        return Evidence(
            self.reporting,
            self.saturated,
            self.spare_kv,
            self.spare_queue,
            self.max_kv,
            self.waiting,
            self.scale_up,
            scale_down_safe,
        )
