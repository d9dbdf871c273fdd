"""The GPU limiter: no model is promised replicas for which there is no GPU, or which a quota forbids.

It sees what every pod of the cluster really uses, leaves out nodes that take no pods, fits replicas onto single nodes
and hands back what does not make a whole replica. A quota caps what the fleet's variants hold together. Of several
quotas, and of what there is, the least counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from math import fsum
from typing import Any, Protocol

from modelyard.autoscaling.decisions import Explanation, Reason, TickContext
from modelyard.autoscaling.fleet import Fleet, Quota
from modelyard.autoscaling.mixing import LOWEST_PRIORITY
from modelyard.autoscaling.variants.analysis import DIGITS
from modelyard.autoscaling.variants.observation import Observation
from modelyard.autoscaling.variants.pools import LIMITED_BY, Pools
from modelyard.autoscaling.variants.proposal import Changes, ReplicaChange, Sized, Variants
from modelyard.autoscaling.variants.saturation_config import Thresholds
from modelyard.objects import Key, Matcher, Notice, parse_selector

STAGE = "limiter"
_NO_GROWTH = Explanation(Reason.NO_GROWTH)


class Grant(Protocol):
    """Gives replicas the GPUs there are."""

    def order(self, seen: Observation, limits: Thresholds) -> Any:
        """Return what candidates are sorted by: the first is served first."""

    def take(self, seen: Observation, replicas: int) -> tuple[int, str]:
        """Take the GPUs there are for these replicas; return for how many, and that in words."""


Counting = Callable[[Fleet, Sequence[Observation], Matcher], Grant]
"""Counts GPUs: the variants are all that hold some, the matcher tells the nodes that count."""


def limit(
    variants: Variants, thresholds: Mapping[Key, Thresholds], tick: TickContext, count: Counting
) -> tuple[Changes, str | None]:
    """Return what does not fit, and why GPUs could not be counted, if so. Undecided variants only hold what they have.

    Quotas alone limit where GPUs are not counted or nodes are unknown; then every scale-up says so.
    """
    fleet, observed = tick.fleet, [variant.seen for variant in variants.values()]
    grant: Grant = _Uncounted()
    problem = fleet.nodes_error if tick.counts_gpus else None
    if tick.counts_gpus and problem is None:
        try:
            matches = parse_selector(tick.settings.node_selector)
        except ValueError as error:
            problem = f"node_selector {tick.settings.node_selector!r}: {error}"
        else:
            grant = count(fleet, observed, matches)
    changes: list[tuple[Key, ReplicaChange]] = []
    candidates: list[Sized] = []
    skipped = None if problem is None else Explanation(Reason.NOT_LIMITED, problem=problem)
    for key, variant in variants.items():
        if not variant.decided:
            continue
        if (variant.replicas or 0) > (variant.seen.current or 0):
            candidates.append(variant)
            if skipped is not None:
                notice = Notice("LimiterUnavailable", str(skipped), "Warning")
                same = variant.replicas
                changes.append((key, ReplicaChange(STAGE, same, same, skipped, suffix=skipped, notices=(notice,))))
        elif skipped is None:
            changes.append((key, ReplicaChange(STAGE, None, None, _NO_GROWTH)))
    if tick.quotas or skipped is None:
        held = _Held(tick.quotas, observed)
        for variant in sorted(candidates, key=lambda v: grant.order(v.seen, thresholds.get(v.seen.key, Thresholds()))):
            changes.append((variant.seen.key, _serve(variant, grant, held)))
    return changes, None if skipped is None else str(skipped)


def _serve(variant: Sized, grant: Grant, held: _Held) -> ReplicaChange:
    current, replicas = variant.seen.current or 0, variant.replicas or 0
    asked = replicas - current
    allowed, quota, why = held.allowed(variant.seen, asked)
    granted, detail = grant.take(variant.seen, allowed)
    held.add(variant.seen, granted)
    after = current + granted
    if granted == allowed < asked:
        limited = Explanation(Reason.LIMITED_BY_QUOTA, replicas=after, quota=quota, why=why)
        return ReplicaChange.to(STAGE, replicas, after, limited)._replace(limited_by=quota)
    if granted < asked:
        limited = Explanation(Reason.LIMITED_BY_GPUS, replicas=after, grant=detail)
        return ReplicaChange.to(STAGE, replicas, after, limited)._replace(limited_by=LIMITED_BY)
    return ReplicaChange.to(STAGE, replicas, after, Explanation(Reason.GRANTED, grant=detail))


class _Held:
    """What variants hold, and hold in a moment, against the quotas."""

    def __init__(self, quotas: Sequence[Quota], variants: Sequence[Observation]) -> None:
        self._quotas = quotas
        self._gpus: dict[tuple[str, str], int] = defaultdict(int)
        """By namespace (``""``: all of them) and accelerator."""
        for seen in variants if quotas else ():
            self.add(seen, seen.current or 0)

    def allowed(self, seen: Observation, replicas: int) -> tuple[int, str, str]:
        """Return the replicas no quota forbids, the quota that forbids the others, and the numbers."""
        accelerator, quota, why = seen.pool, "", ""
        for one in self._quotas:
            for space in ("", seen.key.namespace):
                cap, held = one.cap(space, accelerator), self._gpus[space, accelerator]
                room = replicas if cap is None else max(0, cap - held) // seen.gpus
                if room < replicas:
                    replicas, quota = room, f"quota {one.name}"
                    why = f"{cap} {accelerator or 'GPUs of no known accelerator'} allowed"
                    why += f" in namespace {space}, {held} held" if space else f", {held} held"
        return replicas, quota, why

    def add(self, seen: Observation, replicas: int) -> None:
        for space in ("", seen.key.namespace):
            self._gpus[space, seen.pool] += replicas * seen.gpus


def _by_need(seen: Observation, limits: Thresholds) -> Any:
    """By service class, spare KV cache, cost and name. Without a class: least important; without spare data: first."""
    service = seen.objective.service if seen.objective is not None else None
    priority = service.priority if service is not None else LOWEST_PRIORITY
    used = [min(signal.kv, 1.0) for signal, _ in seen.units if signal.kv is not None]
    spare = round(limits.kv - fsum(used) / len(used), DIGITS) if used else float("-inf")
    return priority, spare, seen.variant.cost, seen.key


class ByNode:
    """Whole replicas on single nodes; first the most important service class, then the model with least room."""

    order = staticmethod(_by_need)

    def __init__(self, fleet: Fleet, variants: Sequence[Observation], matches: Matcher) -> None:
        self._pools = Pools(fleet, matches)
        self._pools.reserve(variants)

    def take(self, seen: Observation, replicas: int) -> tuple[int, str]:
        accelerator, gpus = seen.pool, seen.gpus
        if not accelerator:
            return 0, "the accelerator is not known, so no GPU can be set aside"
        free = self._pools.available(seen)
        granted = self._pools.place(seen, replicas)
        if granted == replicas:
            return granted, f"allocated {granted * gpus} {accelerator} for +{granted}"
        total = self._pools.total.get(accelerator, 0)
        detail = f"asked {replicas * gpus} {accelerator} for +{replicas}, {free} of {total} free"
        if free >= (granted + 1) * gpus:
            detail += f", not {gpus} together where the pods may run"
        return granted, f"{detail}: +{granted}"


class _Uncounted:
    """No GPUs are counted: what quotas allow is given, in the order of ``ByNode``."""

    order = staticmethod(_by_need)

    def take(self, seen: Observation, replicas: int) -> tuple[int, str]:
        return replicas, f"+{replicas} within the quotas"
