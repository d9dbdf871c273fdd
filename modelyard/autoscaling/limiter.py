"""The GPU limiter: no model is promised replicas for which there is no GPU, or which a quota forbids.

It sees what every pod of the cluster really uses, leaves out nodes that take no pods, fits replicas onto single nodes
and hands back what does not make a whole replica. A quota caps what the fleet's variants hold together. Of several
quotas, and of what there is, the least counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from math import fsum
from typing import Any, Protocol

from modelyard.autoscaling.decision import Step
from modelyard.autoscaling.fleet import Fleet
from modelyard.autoscaling.mixing.model import LOWEST_PRIORITY
from modelyard.autoscaling.settings import FleetSettings
from modelyard.autoscaling.variants.analysis import DIGITS
from modelyard.autoscaling.variants.pools import LIMITED_BY, Pools, pool_of_state
from modelyard.autoscaling.variants.saturation_config import Quota
from modelyard.autoscaling.variants.state import State
from modelyard.objects import Notice
from modelyard.objects.selectors import Matcher, parse_selector

_NO_STEP = Step("limiter", None, None, "no scale-up")


class Grant(Protocol):
    """Gives replicas the GPUs there are."""

    def order(self, state: State) -> Any:
        """What candidates are sorted by: the first is served first."""

    def take(self, state: State, replicas: int) -> tuple[int, str]:
        """For how many of these replicas there are GPUs, which are taken then, and that in words."""


Counting = Callable[[Fleet, Sequence[State], Matcher], Grant]
"""Counts GPUs: the states are all that hold some, the matcher tells the nodes that count."""


def limit(
    fleet: Fleet, states: Sequence[State], settings: FleetSettings, count: Counting | None, quotas: Sequence[Quota]
) -> str | None:
    """Lower the targets of ``states`` to what fits; return why GPUs could not be counted, if so.

    ``states`` are the variants with a workload; those without a decision only hold on to what they have. Without
    ``count`` the quotas alone limit; so they do without node data, and every scale-up says so.
    """
    grant: Grant = _Uncounted()
    problem = fleet.nodes_error if count is not None else None
    if count is not None and problem is None:
        try:
            matches = parse_selector(settings.node_selector)
        except ValueError as error:
            problem = f"node_selector {settings.node_selector!r}: {error}"
        else:
            grant = count(fleet, states, matches)
    text = problem and f"GPU limiter skipped, targets are not limited: nodes could not be listed ({problem})"
    candidates = []
    for state in states:
        if not state.decided:
            continue
        if (state.target or 0) > (state.current or 0):
            candidates.append(state)
            if text:
                state.fold(Step("limiter", state.target, state.target, text), f"{state.message}; {text}")
                state.notices = (*state.notices, Notice("LimiterUnavailable", text, "Warning"))
        elif not text:
            state.fold(_NO_STEP)
    if quotas or not text:
        held = _Held(quotas, states)
        for state in sorted(candidates, key=grant.order):
            _serve(state, grant, held)
    return text


def _serve(state: State, grant: Grant, held: _Held) -> None:
    """Give a variant of the replicas it asks for those that are allowed and there."""
    current = state.current or 0
    asked = (state.target or 0) - current
    allowed, quota, why = held.allowed(state, asked)
    granted, detail = grant.take(state, allowed)
    held.add(state, granted)
    if granted == allowed < asked:
        state.limited_by = quota
        detail = f"limited to {current + granted} by {quota} ({why})"
    elif granted < asked:
        state.limited_by = LIMITED_BY
        detail = f"limited to {current + granted} by GPUs ({detail})"
    state.fold(Step("limiter", state.target, current + granted, detail))


class _Held:
    """What variants hold, and hold in a moment, against the quotas."""

    def __init__(self, quotas: Sequence[Quota], states: Sequence[State]) -> None:
        self._quotas = quotas
        self._gpus: dict[tuple[str, str], int] = defaultdict(int)
        """By namespace (``""``: all of them) and accelerator."""
        for state in states if quotas else ():
            self.add(state, state.current or 0)

    def allowed(self, state: State, replicas: int) -> tuple[int, str, str]:
        """How many of these replicas no quota forbids, which quota forbids the others, and the numbers."""
        accelerator, quota, why = pool_of_state(state), "", ""
        for one in self._quotas:
            for space in ("", state.variant.key.namespace):
                cap, held = one.cap(space, accelerator), self._gpus[space, accelerator]
                room = replicas if cap is None else max(0, cap - held) // state.gpus
                if room < replicas:
                    replicas, quota = room, f"quota {one.name}"
                    why = f"{cap} {accelerator or 'GPUs of no known accelerator'} allowed"
                    why += f" in namespace {space}, {held} held" if space else f", {held} held"
        return replicas, quota, why

    def add(self, state: State, replicas: int) -> None:
        """Note that a variant holds so many replicas more."""
        for space in ("", state.variant.key.namespace):
            self._gpus[space, pool_of_state(state)] += replicas * state.gpus


class ByNode:
    """Whole replicas on single nodes; first the most important service class, then the model with least room."""

    def __init__(self, fleet: Fleet, states: Sequence[State], matches: Matcher) -> None:
        self._pools = Pools(fleet, matches)
        self._pools.reserve(states)

    def order(self, state: State) -> Any:
        """By priority, spare, cost and name."""
        return by_need(state)

    def take(self, state: State, replicas: int) -> tuple[int, str]:
        """As many as fit."""
        accelerator, gpus = pool_of_state(state), state.gpus
        if not accelerator:
            return 0, "the accelerator is not known, so no GPU can be set aside"
        free = self._pools.available(state)
        granted = self._pools.place(state, replicas)
        if granted == replicas:
            return granted, f"allocated {granted * gpus} {accelerator} for +{granted}"
        total = self._pools.total.get(accelerator, 0)
        detail = f"asked {replicas * gpus} {accelerator} for +{replicas}, {free} of {total} free"
        if free >= (granted + 1) * gpus:
            detail += f", not {gpus} together where the pods may run"
        return granted, f"{detail}: +{granted}"


class _Uncounted:
    """No GPUs are counted: what quotas allow is given, in the order of ``ByNode``."""

    def order(self, state: State) -> Any:
        return by_need(state)

    def take(self, state: State, replicas: int) -> tuple[int, str]:
        return replicas, f"+{replicas} within the quotas"


def by_need(state: State) -> Any:
    """What variants are sorted by: importance of the service class, spare KV cache, cost, name.

    A variant without a class is of the least important; one without a replica that says what is spare comes first.
    """
    service = state.slo.service if state.slo is not None else None
    priority = service.priority if service is not None else LOWEST_PRIORITY
    used = [signal.kv for signal, _ in state.units if signal.kv is not None]
    spare = round(state.limits.kv - fsum(used) / len(used), DIGITS) if used else float("-inf")
    return priority, spare, state.variant.cost, state.variant.key
