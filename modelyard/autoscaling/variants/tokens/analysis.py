"""The repaired token analysis. Source: WVA saturation reference, 'Token analyzer', with repairs of its 'Defects'."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum
from typing import NamedTuple

from modelyard.autoscaling.configuration import FleetSettings
from modelyard.autoscaling.decisions import Reason
from modelyard.autoscaling.variants.analysis import DIGITS
from modelyard.autoscaling.variants.assessment import Assessment
from modelyard.autoscaling.variants.attribution import Performances
from modelyard.autoscaling.variants.observation import Observation
from modelyard.autoscaling.variants.replicas import stuck_pods, unseen
from modelyard.autoscaling.variants.saturation_config import Thresholds, TokenThresholds
from modelyard.autoscaling.variants.tokens.capacity import (
    FLOOR,
    Replica,
    middle,
    output_bucket,
    remember,
    replica_capacity,
    tokens_in_use,
)
from modelyard.autoscaling.variants.tokens.knowledge import Known, arguments_of, mean_tokens

_SAME = 0.05
"""A newly seen compute limit this near to the mean of those known is not worth writing down."""
BYTES_PER_TOKEN = 4.0
"""Bytes of a request's body per token, the reference's estimate for prompts that no engine has counted yet."""


class Queue(NamedTuple):
    """Requests that wait at a gateway, and the size of their bodies (0: not known)."""

    requests: float = 0.0
    size: float = 0.0

    def tokens(self, prompt: float, output: float, hit_rate: float) -> float:
        """Return the tokens that the requests will need, by mean tokens; prefix caches have a part of their prompts."""
        prompts = max(self.size / BYTES_PER_TOKEN, self.requests * prompt)
        return prompts * (1 - hit_rate) + self.requests * output


NO_QUEUE = Queue()


@dataclass(slots=True)
class VariantLoad:
    """One variant: ``worth`` tokens per replica, ``demand`` of the ``counted`` replicas.

    ``trusted`` replicas report everything and are warm, ``serving`` are ready, ``lost`` are stuck.
    """

    worth: int = 0
    demand: float = 0.0
    counted: int = 0
    trusted: int = 0
    serving: int = 0
    lost: int = 0


@dataclass(slots=True, kw_only=True)
class TokenAnalysis(Assessment):
    """A model in tokens. ``demand`` is of all replicas and of the gateway's queue; ``backlog`` the latter alone.

    ``silent`` replicas are ready and do not report, ``assumed`` ones do not say how large their cache is.
    """

    unit = " tokens"
    what_is_short = Reason.SHORT_OF_TOKENS
    thresholds: TokenThresholds
    variants: dict[str, VariantLoad] = field(default_factory=dict)
    demand: float = 0.0
    backlog: float = 0.0
    silent: int = 0
    assumed: int = 0

    @property
    def scale_up(self) -> bool:
        return self.short_of(self.supply, 1.0)

    @property
    def lost(self) -> float:
        return fsum(v.lost * v.worth for v in self.variants.values())

    @property
    def supply(self) -> float:
        return fsum(v.serving * v.worth for v in self.variants.values())

    def worth(self, seen: Observation) -> float:
        return float(self.variants[seen.name].worth)

    def wanted(self, factor: float = 1.0) -> float:
        return self.demand * factor / self.thresholds.up

    def short_of(self, provided: float, factor: float) -> bool:
        return round(self.wanted(factor) - provided, DIGITS) > 0

    def fits(self, removed: Mapping[str, int], factor: float = 1.0) -> bool:
        """Whether ``factor`` times the load fits without the ``removed`` replicas (variant name to count).

        In total it must stay below the lower boundary; and with what the removed replicas carry spread evenly over the
        others, no variant may come above the upper one: a small variant cannot take the load of a big one.
        """
        if self.incomplete:
            return False
        left = {name: v.trusted - removed.get(name, 0) for name, v in self.variants.items()}
        replicas = sum(left.values())
        if replicas < 1:
            return False
        capacity = fsum(left[name] * v.worth for name, v in self.variants.items())
        if round(self.demand * factor / self.thresholds.down - capacity, DIGITS) > 0:
            return False
        mean = {name: v.demand / v.counted if v.counted else 0.0 for name, v in self.variants.items()}
        kept = fsum(max(0, n) * mean[name] for name, n in left.items())
        share = (self.demand - kept) / replicas
        return all(
            round((mean[name] + share) * factor - self.thresholds.up * self.variants[name].worth, DIGITS) <= 0
            for name, n in left.items()
            if n > 0
        )

    def __str__(self) -> str:
        text = f"demand {self.demand:.0f} tokens, capacity {self.supply:.0f} over {self.reporting} reporting"
        return self.with_counts(f"{text}, {self.saturated} saturated", self.silent, self.assumed)


def analyse_tokens(
    variants: Sequence[Observation],
    performance: Performances,
    limits: Thresholds,
    thresholds: TokenThresholds,
    settings: FleetSettings,
    now: float,
    queue: Queue = NO_QUEUE,
) -> TokenAnalysis:
    """Analyse one model; ``variants`` are all its variants, those at zero too, ``queue`` what waits at the gateway."""
    result = TokenAnalysis(thresholds=thresholds)
    stuck, result.stuck_pods = stuck_pods(variants, settings, now)
    warm_before = now - settings.warm_up
    pods = [(signal.namespace, signal.pod, signal.model) for seen in variants for signal, _ in seen.units]
    said = [performance[key] for key in pods if key in performance]
    prompt, output = mean_tokens(said)
    hits = [one.prefix_hit_rate for one in said if one.prefix_hit_rate is not None]
    known = Known(variants, prompt, output, limits)
    for seen in variants:
        for signal, _ in seen.units:
            reported = performance.get((signal.namespace, signal.pod, signal.model))
            if reported is not None and reported.kv_tokens:
                known.totals.setdefault(seen.name, []).append(reported.kv_tokens)
    spare_kv: list[float] = []
    spare_queue: list[float] = []
    unknown: list[Observation] = []
    """One entry per replica whose demand has to be taken from the others."""
    for seen in sorted(variants, key=lambda seen: seen.name):
        variant = result.variants[seen.name] = VariantLoad()
        young = 0
        assumed_total = 0
        capacities: list[int] = []
        observed: dict[str, list[int]] = {}
        # Defaults of an engine whose command line is not known would only be a guess at its limit.
        arguments = arguments_of(seen) if seen.workload is not None and seen.workload.engine_args else None
        for signal, pod in seen.units:
            result.reporting += 1
            result.unready += pod.ready_since is None
            if (signal.namespace, signal.pod) in stuck:
                variant.lost += pod.ready_since is not None
                continue
            kv, waiting, engines = signal.kv, signal.waiting, signal.engines or 1.0
            if kv is not None:
                result.max_kv = max(result.max_kv, kv)
                spare_kv.append(limits.kv - kv)
            if waiting is not None:
                result.waiting += waiting
                spare_queue.append(limits.queue - waiting / engines)
            warm = pod.ready_since is not None and pod.ready_since <= warm_before
            young += pod.ready_since is not None and not warm
            reported = performance.get((signal.namespace, signal.pod, signal.model))
            total = reported.kv_tokens if reported is not None and reported.kv_tokens else 0
            if not total:
                total = assumed_total = assumed_total or known.total(seen)
                result.assumed += 1
            own_prompt = (reported.prompt_tokens if reported is not None else None) or prompt
            own_output = (reported.output_tokens if reported is not None else None) or output
            if kv is None:
                result.incomplete += 1
                unknown.append(seen)
                continue
            # Of several engines, the fullest one's use is not that of all their caches.
            use = reported.mean_kv if engines > 1 and reported is not None and reported.mean_kv is not None else kv
            replica = Replica(total, tokens_in_use(use, total), waiting or 0.0, own_prompt, own_output, engines)
            capacity = replica_capacity(replica, limits, seen.memory.compute_limits, arguments, FLOOR, warm)
            variant.demand += capacity.demand
            variant.counted += 1
            capacities.append(capacity.effective)
            if capacity.observed:
                least = round(FLOOR * capacity.memory)
                observed.setdefault(output_bucket(own_output), []).append(max(capacity.observed, least))
            if waiting is None or (waiting and not own_prompt):
                result.incomplete += 1
            elif warm:
                variant.trusted += 1
            result.saturated += capacity.saturated
        if capacities:
            variant.worth = known.live[seen.name] = middle(capacities)
        _learn(result, seen, observed)
        result.stuck += variant.lost
        result.young[seen.name] = young
        result.warming += young
        quiet = max(0, (seen.ready or 0) - seen.reporting)
        silent = quiet - (unseen(seen, warm_before) if quiet else 0)
        result.silent += silent
        unknown += [seen] * silent
        variant.serving = max(0, (seen.ready or 0) - variant.lost)
    for seen in variants:
        variant = result.variants[seen.name]
        variant.worth = variant.worth or known.capacity(seen)
    _fill_in(result, unknown)
    backlog = queue.requests
    result.backlog = queue.tokens(prompt, output, fsum(hits) / len(hits) if hits else 0.0)
    result.demand = fsum(v.demand for v in result.variants.values()) + result.backlog
    result.spare_kv = fsum(spare_kv) / len(spare_kv) if spare_kv else None
    result.spare_queue = fsum(spare_queue) / len(spare_queue) - backlog / len(spare_queue) if spare_queue else None
    result.waiting += backlog
    result.scale_down_safe = not result.scale_up and any(result.fits({s.name: 1}) for s in variants if s.current)
    return result


def _fill_in(result: TokenAnalysis, unknown: Sequence[Observation]) -> None:
    """Replicas of which no load is known carry the mean of their variant, else of the model."""
    counted = sum(v.counted for v in result.variants.values())
    everywhere = fsum(v.demand for v in result.variants.values()) / counted if counted else 0.0
    means = {name: v.demand / v.counted if v.counted else everywhere for name, v in result.variants.items()}
    for seen in unknown:
        result.variants[seen.name].demand += means[seen.name]
        result.variants[seen.name].counted += 1


def _learn(result: TokenAnalysis, seen: Observation, observed: Mapping[str, Sequence[int]]) -> None:
    """One value per tick and class, and only where it says something new."""
    history: Mapping[str, Sequence[float]] = seen.memory.compute_limits
    changed = False
    for bucket, values in sorted(observed.items()):
        value = float(middle(values))
        kept = history.get(bucket, ())
        mean = fsum(kept) / len(kept) if kept else 0.0
        if abs(value - mean) > _SAME * mean:
            history = remember(history, bucket, value)
            changed = True
    if changed:
        result.compute_limits[seen.name] = {bucket: list(values) for bucket, values in history.items()}
