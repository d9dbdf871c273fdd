"""The GPU limiter: no model is promised replicas for which there is no GPU.

It sees what every pod of the cluster really uses, leaves out nodes that take no pods, fits replicas onto single nodes
and hands back what does not make a whole replica.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum
from typing import Protocol

from modelyard.autoscaling.decision import Step
from modelyard.autoscaling.fleet import Fleet
from modelyard.autoscaling.mixing.model import LOWEST_PRIORITY
from modelyard.autoscaling.settings import FleetSettings
from modelyard.autoscaling.variants.analysis import DIGITS
from modelyard.autoscaling.variants.pools import LIMITED_BY, Pools, pool_of_state
from modelyard.autoscaling.variants.state import State
from modelyard.objects import Notice
from modelyard.objects.selectors import Matcher, parse_selector

_NO_STEP = Step("limiter", None, None, "no scale-up")


class Grant(Protocol):
    """Gives the candidates, which ask for more than they have, what there is."""

    def __call__(self, fleet: Fleet, states: Sequence[State], candidates: Sequence[State], matches: Matcher) -> None:
        """``states`` are all that hold GPUs, ``matches`` the nodes that count."""


def limit(fleet: Fleet, states: Sequence[State], settings: FleetSettings, grant: Grant) -> str | None:
    """Lower the targets of ``states`` to what fits; return why the limiter could not work, if so.

    ``states`` are the variants with a workload; those without a decision only hold on to what they have. Without node
    data decisions pass unlimited, and every scale-up says so.
    """
    problem = fleet.nodes_error
    matches: Matcher | None = None
    if problem is None:
        try:
            matches = parse_selector(settings.node_selector)
        except ValueError as error:
            problem = f"node_selector {settings.node_selector!r}: {error}"
    if problem is not None or matches is None:
        text = f"GPU limiter skipped, targets are not limited: nodes could not be listed ({problem})"
        for state in states:
            if state.decided and (state.target or 0) > (state.current or 0):
                state.fold(Step("limiter", state.target, state.target, text), f"{state.message}; {text}")
                state.notices = (*state.notices, Notice("LimiterUnavailable", text, "Warning"))
        return text
    candidates = []
    for state in states:
        if not state.decided:
            continue
        if (state.target or 0) > (state.current or 0):
            candidates.append(state)
        else:
            state.fold(_NO_STEP)
    if not candidates:
        return None
    grant(fleet, states, candidates, matches)
    return None


def grant_by_node(fleet: Fleet, states: Sequence[State], candidates: Sequence[State], matches: Matcher) -> None:
    """Whole replicas on single nodes; first the most important service class, then the model with least room."""
    pools = Pools(fleet, matches)
    pools.reserve(states)
    for state in sorted(candidates, key=lambda s: (_priority(s), _spare(s), s.variant.cost, s.variant.key)):
        _grant(state, pools)


def _priority(state: State) -> int:
    """The priority of the variant's service class; one without a class is of the least important."""
    service = state.slo.service if state.slo is not None else None
    return service.priority if service is not None else LOWEST_PRIORITY


def _spare(state: State) -> float:
    """The variant's mean spare KV cache; a variant without a replica that says so comes first."""
    values = [signal.kv for signal, _ in state.units if signal.kv is not None]
    return round(state.limits.kv - fsum(values) / len(values), DIGITS) if values else float("-inf")


def settle(state: State, asked: int, granted: int, detail: str) -> None:
    """Give a variant that ``asked`` for more replicas those that were ``granted``."""
    target = (state.current or 0) + granted
    if granted < asked:
        state.limited_by = LIMITED_BY
        detail = f"limited to {target} by GPUs ({detail})"
    state.fold(Step("limiter", state.target, target, detail))


def _grant(state: State, pools: Pools) -> None:
    current = state.current or 0
    asked = (state.target or 0) - current
    gpus = state.gpus
    accelerator = pool_of_state(state)
    if not accelerator:
        settle(state, asked, 0, "the accelerator is not known, so no GPU can be set aside")
        return
    free = pools.available(state)
    granted = pools.place(state, asked)
    if granted == asked:
        settle(state, asked, granted, f"allocated {granted * gpus} {accelerator} for +{granted}")
        return
    detail = f"asked {asked * gpus} {accelerator} for +{asked}, {free} of {pools.total.get(accelerator, 0)} free"
    if free >= (granted + 1) * gpus:
        detail += f", not {gpus} together where the pods may run"
    settle(state, asked, granted, f"{detail}: +{granted}")
