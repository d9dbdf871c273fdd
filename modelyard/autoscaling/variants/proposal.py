"""What a strategy proposes for a model, and what later stages change about it.

A strategy returns one ``Proposal``, with a ``Proposed`` for each variant. Each stage after it returns a
``ReplicaChange`` for each variant whose replicas it changes or about which it has something to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import NamedTuple

from modelyard.autoscaling.decisions import ConditionValue, Evidence, Explanation, Parts, Reason, Step
from modelyard.autoscaling.variants.observation import Observation
from modelyard.objects import Key, Notice, cut

MOST = 200
"""Characters of a condition's message about replicas that cannot be added."""


class VariantTransition(NamedTuple):
    """The scaling of a variant that is under way.

    ``base`` is the replicas once the scaling under way is complete, ``coming`` those of them that are not ready,
    ``lost`` those that should have been ready long ago: they exist, and nothing may count on them. ``timed_out_from``
    is the desired count that was given up because its transition took too long. ``since`` and ``heading`` are
    remembered.
    """

    seen: Observation
    base: int
    coming: int = 0
    moving: bool = False
    overdue: bool = False
    timed_out_from: int | None = None
    since: float | None = None
    heading: int | None = None
    lost: int = 0

    @property
    def name(self) -> str:
        return self.seen.variant.key.name


class Tracked(NamedTuple):
    """Fields of the memory that are replaced whole in every tick that decides about the variant."""

    transition_since: float | None = None
    transition_target: int | None = None
    relax_since: float | None = None
    partial_since: float | None = None
    stuck_since: Mapping[str, float] = {}
    stuck_waiting: Mapping[str, float] = {}


NOTHING_TRACKED = Tracked()


class ReplicaChange(NamedTuple):
    """A variant's replicas before and after one stage; ``after`` ``None``: it only explains.

    ``why`` is the detail of the step (empty: not shown); ``reason``, unless empty, is the decision's from then on.
    ``prefix`` and ``suffix`` are added to the decision's message.
    """

    stage: str
    before: int | None
    after: int | None
    why: object = ""
    reason: str = ""
    prefix: object = ""
    suffix: object = ""
    limited_by: str | None = None
    scarcity: Explanation | None = None
    """What the lack of accelerators means for the load."""
    shortage: Explanation | None = None
    notices: tuple[Notice, ...] = ()

    @classmethod
    def to(cls, stage: str, before: int | None, after: int, why: Explanation) -> ReplicaChange:
        return cls(stage, before, after, why, why.code, why if before != after else "")

    @property
    def step(self) -> Step:
        return Step(self.stage, self.before, self.after, str(self.why), self.reason)


Changes = Iterable[tuple[Key, ReplicaChange]]


class Origin(Enum):
    """The source of a proposal."""

    STRATEGY = "strategy"
    ZERO = "zero"
    """A strategy left the variant at zero: what stands there counts."""
    ASLEEP = "asleep"
    """The variant is at zero, and no strategy was asked about it."""


class Proposed(NamedTuple):
    """The replicas proposed for one variant.

    ``why`` is the message; the outcome's reason is the decision's. Not ``decided``: replicas are merely kept.
    ``metrics``, ``optimization`` and ``target`` are conditions. ``learnt`` are further fields of the memory that may
    have changed. ``shortage`` is why replicas that the load needs cannot be added, ``override`` what saturation
    overruled.
    """

    replicas: int | None
    reason: str
    why: Parts
    decided: bool = True
    publish: bool = True
    metrics: ConditionValue | None = None
    optimization: ConditionValue | None = None
    target: ConditionValue | None = None
    steps: tuple[ReplicaChange, ...] = ()
    transition: VariantTransition | None = None
    tracked: Tracked = NOTHING_TRACKED
    learnt: Mapping[str, object] = {}
    shortage: Explanation | None = None
    override: Explanation | None = None
    origin: Origin = Origin.STRATEGY
    failed: bool = False

    @classmethod
    def of(cls, replicas: int, *why: Explanation, transition: VariantTransition | None = None) -> Proposed:
        """Return a proposal; the last finding names the outcome. ``transition`` is remembered until the next tick."""
        proposed = cls(replicas, why[-1].code, Parts(why))
        if transition is None:
            return proposed
        return proposed._replace(transition=transition, tracked=Tracked(transition.since, transition.heading))


class Proposal(NamedTuple):
    """The replicas that a strategy proposes for a model.

    ``problem`` is why it could not decide, as the condition ``MetricsAvailable``; ``invalid`` what is wrong with the
    configuration it needs. ``scale_down_safe`` is ``None`` when there was no analysis of saturation. ``settled``: the
    proposal is final, and idleness is not judged. ``wanted`` is what the cheapest mix for the load needs, before
    anything damps it, where it was sized by a forecast (``None``: it was not).
    """

    variants: Mapping[str, Proposed] = {}
    problem: ConditionValue | None = None
    invalid: Explanation | None = None
    scale_down_safe: bool | None = None
    evidence: Evidence | None = None
    settled: bool = False
    wanted: Mapping[str, int] | None = None


def keep(seen: Observation, *why: Explanation, optimization: str = "", reason: str = "") -> Proposed:
    """Return the safety net: publish what was desired, else what is there, never above the maximum."""
    replicas = seen.desired or seen.current
    parts = Parts(why)
    bounds = seen.bounds
    if replicas is not None and bounds.upper is not None and replicas > bounds.upper:
        capped = Explanation(Reason.CAPPED, replicas=replicas, upper=bounds.upper, source=bounds.upper_from)
        parts, replicas = Parts((*parts, capped)), bounds.upper
    reason = reason or why[0].code
    return Proposed(
        replicas, reason, parts, decided=False, optimization=ConditionValue("False", optimization or reason, parts)
    )


class Sized(NamedTuple):
    """A variant's replicas after a stage: what was proposed, and the changes made to that since."""

    seen: Observation
    proposed: Proposed
    replicas: int | None
    changes: tuple[ReplicaChange, ...] = ()

    @classmethod
    def of(cls, seen: Observation, proposed: Proposed) -> Sized:
        return cls(seen, proposed, proposed.replicas)

    def changed(self, change: ReplicaChange) -> Sized:
        replicas = self.replicas if change.after is None else change.after
        return Sized(self.seen, self.proposed, replicas, (*self.changes, change))

    @property
    def decided(self) -> bool:
        return self.proposed.decided

    @property
    def reason(self) -> str:
        reasons = (change.reason for change in reversed(self.changes) if change.reason and change.after is not None)
        return next(reasons, self.proposed.reason)

    @property
    def message(self) -> str:
        """The decision for people: what changed it last comes first."""
        if not self.changes:
            return str(self.proposed.why)
        prefixes = [change.prefix for change in reversed(self.changes)]
        return str(Parts((*prefixes, *self.proposed.why, *(change.suffix for change in self.changes))))

    @property
    def limited_by(self) -> str | None:
        return next((change.limited_by for change in reversed(self.changes) if change.limited_by), None)

    @property
    def shortage(self) -> Explanation | None:
        known = (self.proposed.shortage, *(change.shortage for change in self.changes))
        return next((shortage for shortage in known if shortage is not None), None)


def shortage_value(shortage: Explanation) -> ConditionValue:
    """Return the condition of replicas that cannot be added."""
    return ConditionValue("True", shortage.code, cut(str(shortage), MOST))


Variants = Mapping[Key, Sized]
"""Variants by key, in key order."""


def changed(variants: Variants, changes: Changes) -> Variants:
    """Return the variants after a stage."""
    after: dict[Key, Sized] | None = None
    for key, change in changes:
        after = dict(variants) if after is None else after
        after[key] = after[key].changed(change)
    return variants if after is None else after
