"""A roll-out of a ModelRoute: its requests go to another ModelServer in steps, as long as that serves as well. Pure.

Two servers behind one name, old and new side by side; weights of the route's rules say who gets what. What is wished is
an annotation of the route, and so is how far it is: whoever comes goes on from there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic.alias_generators import to_camel

from modelyard.metrics.vocabulary import RoutedRequests
from modelyard.objects import DocumentError, Key, cut, first_fault, parse_document
from modelyard.reconcile.plans import Count, Seconds

WISH: Final = "modelyard.dev/roll-out"
"""Annotation of a ModelRoute: to which ModelServer its requests are to go, in which steps, as JSON or YAML."""
MEMORY: Final = "modelyard.dev/roll-out-memory"
"""Annotation of a ModelRoute: how far its roll-out is."""
ROLLED_OUT, ROLLED_BACK, EDITED = "RolledOut", "RolledBack", "WeightsEdited"
NO_PODS = "has no ready pod"


class RouteRollOut(BaseModel):
    """Where a route's requests are to go, in which steps, and what must hold at each. Names in camelCase or not."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)

    to: str = Field(min_length=1, max_length=253, description="the ModelServer that the requests are to go to")
    steps: tuple[Annotated[int, Field(ge=1, le=100)], ...] = Field(
        (5, 25, 50, 100), min_length=1, max_length=20, description="its share of the requests at each step, per cent"
    )
    step_minutes: float = Field(10, ge=0.05, le=1440, description="that a step lasts at least")
    requests: float = Field(50, ge=1, description="that each side must have served within a step to be compared")
    error_rate: float = Field(0.05, ge=0, le=1, description="so much greater a share of failures is too much")
    ttft_ratio: float = Field(1.5, ge=1.3, le=100, description="times the others' p95 time to first token is too much")

    @field_validator("steps")
    @classmethod
    def _upwards(cls, steps: tuple[int, ...]) -> tuple[int, ...]:
        if any(later <= earlier for earlier, later in pairwise(steps)):
            raise ValueError("each step must be greater than the one before, such as [5, 25, 50, 100]")
        return steps

    @classmethod
    def read(cls, text: str) -> RouteRollOut:
        """What an annotation says. Raises ``ValueError`` with what is wrong and what would be right."""
        try:
            document = parse_document(text)
            if not isinstance(document, Mapping):
                raise DocumentError("is no map - write for example {to: chat-next, steps: [5, 25, 50, 100]}")
            return cls.model_validate(dict(document))
        except DocumentError as error:
            raise ValueError(f"annotation {WISH} {error}") from None
        except ValidationError as error:
            raise ValueError(f"annotation {WISH}: {first_fault(error)}") from None

    @property
    def text(self) -> str:
        """As an annotation."""
        return self.model_dump_json(by_alias=True, exclude_defaults=True)

    @property
    def digest(self) -> str:
        """The same for the same wish."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]

    @property
    def seconds(self) -> float:
        """That a step lasts at least."""
        return 60 * self.step_minutes


class RuleWeights(BaseModel):
    """The weights of one rule's targets, in order. A list, since a rule with the same targets is known by its place."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rule: int = Field(ge=0, le=63)
    weights: tuple[Annotated[int, Field(ge=0, le=100)], ...] = Field(max_length=64)


class RouteRollOutMemory(BaseModel):
    """How far a roll-out is."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    wish: str = Field("", max_length=64, description="digest of the wish that this is about")
    to: str = Field("", max_length=253, description="the server of that wish")
    before: tuple[RuleWeights, ...] = Field((), max_length=64, description="weights before the first step")
    step: Count = Field(-1, description="place of the step in the list; -1: before the first")
    since: Seconds = Field(0.0, description="when its weights were set")
    generation: Count = Field(0, description="of the route when that was decided")
    ended: Literal["", "RolledOut", "RolledBack", "WeightsEdited"] = Field("", description="how it ended")
    said: tuple[Annotated[str, Field(max_length=500)], ...] = Field(
        (), max_length=64, description="what came of each step, the last one's too"
    )

    def with_said(self, words: str, **more: Any) -> RouteRollOutMemory:
        """With one more thing to be told."""
        return self.model_copy(update={"said": (*self.said, cut(words, 500))[-24:], **more})


def weights_at(before: Sequence[int], place: int, percent: int) -> tuple[int, ...]:
    """The weights of a rule's targets where the one at ``place`` gets so many per cent of its requests.

    The others share the rest as before; their sum is exact, what does not divide goes to the greatest remainders.
    """
    rest, others = 100 - percent, sum(before) - before[place]
    parts = [0.0 if index == place else rest * one / others for index, one in enumerate(before)]
    whole = [int(part) for part in parts]
    order = sorted(range(len(parts)), key=lambda index: (whole[index] - parts[index], index))
    for index in order[: rest - sum(whole)]:
        whole[index] += 1
    whole[place] = percent
    return tuple(whole)


@dataclass(frozen=True, slots=True)
class RouteWatch:
    """What is measured at a step: what went to ``new`` since its beginning, and to the ``old`` servers over the same
    time; where those get nothing any more (``beside`` is false), over as long a time before it."""

    route: Key
    new: Key
    old: tuple[Key, ...]
    since: float
    seconds: float
    beside: bool

    @property
    def every(self) -> float:
        """Seconds from one look to the next."""
        return min(60.0, max(1.0, self.seconds / 20))

    def spans(self, now: float) -> tuple[tuple[float, float], tuple[float, float]]:
        """From when to when the new one and the old ones are looked at."""
        here = (self.since, max(now, self.since + 1))
        return here, here if self.beside else (self.since - self.seconds, self.since)


class RouteReading(NamedTuple):
    """What was measured ``at`` a time (epoch seconds) for a step that began ``since``, or why nothing could be."""

    at: float
    since: float
    new: RoutedRequests = RoutedRequests()
    old: RoutedRequests = RoutedRequests()
    problem: str = ""


class StepVerdict(NamedTuple):
    """What came of a step, in words: ``"on"``, ``"back"``, or ``"wait"``."""

    goes: Literal["on", "back", "wait"]
    words: str


def verdict(wish: RouteRollOut, watch: RouteWatch, reading: RouteReading | None, ready: int, now: float) -> StepVerdict:
    """Whether to go on. ``ready``: pods of the new server.

    So many failures that no later success could make up for them end it at once; the time to first token is judged at
    the end of the step, since caches of new pods are cold.
    """
    over = now >= watch.since + wish.seconds
    if over and not ready:
        return StepVerdict("back", f"ModelServer {watch.new.name} {NO_PODS}")
    if reading is None or reading.since != watch.since:
        return StepVerdict("wait", "nothing is measured yet")
    if reading.problem:
        return StepVerdict("wait", f"not measured: {reading.problem}")
    new, old, need = reading.new, reading.old, wish.requests
    before = old.failed / old.requests if old.requests else 0.0
    share = new.failed / new.requests if new.requests else 0.0
    words = f"{share:.1%} of {new.requests:.0f} requests failed, of {old.requests:.0f} to the others {before:.1%}"
    # Of a few requests nobody knows the rate: one more failure of two more is held possible.
    usual = before if min(new.requests, old.requests) >= need else (old.failed + 1) / (old.requests + 2)
    if new.failed > (usual + wish.error_rate) * max(new.requests, need):
        return StepVerdict("back", f"{words}; {wish.error_rate:.1%} more are allowed")
    if min(new.requests, old.requests) < need:
        return StepVerdict("wait", f"{words}; {need:g} of each are needed")
    if not over or reading.at < watch.since + wish.seconds:
        return StepVerdict("wait", words)
    if new.ttft is None or old.ttft is None:
        return StepVerdict("on", words)
    words = f"{words}; TTFT p95 {new.ttft:.3g} s, of the others {old.ttft:.3g} s"
    if new.ttft > old.ttft * wish.ttft_ratio:
        return StepVerdict("back", f"{words}; {wish.ttft_ratio:g} times as much is allowed")
    return StepVerdict("on", words)
