"""Whether an update serves as well as what served before it: fewer requests that fail, a first token as soon. Pure.

The error rate is judged as soon as there are requests enough, the time to first token at the end of the window: caches
of new pods are cold.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from pydantic import ValidationError

from modelyard.metrics.vocabulary import ServedRequests
from modelyard.objects import DocumentError, first_fault, parse_document, timestamp
from modelyard.workloads.rendering import GateSettings

GATE: Final = "modelyard.dev/gate"
"""Annotation of a service: ``off``, or what differs from the cluster's settings, as JSON or YAML."""
READY, COMPARED = "modelyard.dev/ready-since", "modelyard.dev/compared"
"""Annotations of a status: since when an update that is being compared is ready, and what came of it."""


@dataclass(frozen=True, slots=True)
class GateWatch:
    """Pods that are compared: the new ones (``pods``, by name) from ``ready`` on, with those whose names match
    ``before`` until ``since`` (epoch seconds); ``beside``: with those over the same time."""

    namespace: str
    pods: frozenset[str]
    before: re.Pattern[str]
    since: float
    ready: float
    gate: GateSettings
    beside: bool = False
    problem: str = ""
    """What is wrong with the annotation."""

    @property
    def words(self) -> str:
        said = f"compared with what served before until {timestamp(self.until)}"
        return f"{said}; {self.problem}" if self.problem else said

    @property
    def until(self) -> float:
        return self.ready + self.gate.window_seconds

    def over(self, now: float) -> float:
        """Seconds that the new ones can be looked at by now."""
        return max(1.0, min(now, self.until) - self.ready)

    def sides(
        self, new: Mapping[str, ServedRequests], old: Mapping[str, ServedRequests]
    ) -> tuple[ServedRequests, ServedRequests]:
        """What was served by the new pods, and by those before, of what all pods of the namespace have."""
        mine = ServedRequests.of(one for name, one in new.items() if name in self.pods)
        theirs = ServedRequests.of(
            one for name, one in old.items() if name not in self.pods and self.before.fullmatch(name) is not None
        )
        return mine, theirs


class GateReading(NamedTuple):
    """What was measured ``at`` a time (epoch seconds), or the ``problem`` for which nothing could be."""

    at: float
    new: ServedRequests = ServedRequests()
    old: ServedRequests = ServedRequests()
    problem: str = ""


class GateVerdict(NamedTuple):
    """What came of it, in words; ``worse``: it is to go back."""

    words: str
    worse: bool = False


def settings(text: str, given: GateSettings) -> tuple[GateSettings, str]:
    """What holds for a service with this annotation, and what is wrong with that."""
    if not text:
        return given, ""
    if text.strip() == "off":
        return given.model_copy(update={"enabled": False}), ""
    try:
        document = parse_document(text)
        if not isinstance(document, Mapping):
            return given, f"annotation {GATE} is neither off nor a map of settings: those of the cluster hold"
        own = {name: value for name, value in document.items() if name != "promServerAddress"}
        return GateSettings.model_validate({**given.model_dump(by_alias=True), **own}), ""
    except (DocumentError, ValidationError) as error:
        fault = first_fault(error) if isinstance(error, ValidationError) else error
        return given, f"annotation {GATE}: {fault}: the settings of the cluster hold"


def pods_of(workloads: Iterable[str]) -> re.Pattern[str]:
    """The names of the pods of these workloads, those of today and those that are gone."""
    return re.compile(f"(?:{'|'.join(map(re.escape, sorted(workloads)))})(?:-[a-z0-9]+){{1,2}}")


def verdict(watch: GateWatch, reading: GateReading | None) -> GateVerdict | None:
    """What is to become of the update; ``None``: that is not known yet."""
    if reading is None or reading.at < watch.ready:
        return None
    over = reading.at >= watch.until
    if reading.problem:
        return GateVerdict(f"not compared with what served before: {reading.problem}") if over else None
    new, old, gate = reading.new, reading.old, watch.gate
    if not watch.beside and old.requests < gate.requests:
        return GateVerdict(f"not compared: {old.requests:.0f} requests before it, {gate.requests:g} are needed")
    if min(new.requests, old.requests) < gate.requests:
        few = f"not compared: {new.requests:.0f} requests, and {old.requests:.0f} to the others"
        return GateVerdict(f"{few}, {gate.requests:g} are needed") if over else None
    rate, before = new.failed / new.requests, old.failed / old.requests
    words = f"{rate:.1%} of {new.requests:.0f} requests failed, of those it is compared with {before:.1%}"
    if rate > before + gate.error_rate:
        return GateVerdict(f"{words}; {gate.error_rate:.1%} more are allowed", worse=True)
    if not over:
        return None
    if new.ttft is None or old.ttft is None:
        return GateVerdict(words)
    words = f"{words}; TTFT {new.ttft:.3g} s, of those {old.ttft:.3g} s"
    if new.ttft > old.ttft * gate.ttft_ratio:
        return GateVerdict(f"{words}; {gate.ttft_ratio:g} times as much is allowed", worse=True)
    return GateVerdict(words)
