"""The GPU limiter: no model is promised replicas for which there is no GPU.

It sees what every pod of the cluster really uses, leaves out nodes that take no pods, fits replicas onto single nodes
and hands back what does not make a whole replica.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import fsum
from typing import Protocol

from modelyard.autoscaling.accelerators import PRODUCT_LABELS, short_name
from modelyard.autoscaling.decision import Step
from modelyard.autoscaling.fleet import Fleet
from modelyard.autoscaling.mixing.model import LOWEST_PRIORITY
from modelyard.autoscaling.settings import FleetSettings
from modelyard.autoscaling.variants.analysis import DIGITS
from modelyard.autoscaling.variants.state import State
from modelyard.objects import Notice
from modelyard.objects.selectors import Matcher, parse_selector

LIMITED_BY = "gpu-limiter"
VENDORS = ("nvidia.com", "amd.com", "intel.com")
"""Whose GPUs are counted."""
_TERMINAL = ("Succeeded", "Failed")
_NO_STEP = Step("limiter", None, None, "no scale-up")


class Grant(Protocol):
    """Gives the candidates, which ask for more than they have, what there is."""

    def __call__(self, fleet: Fleet, states: Sequence[State], candidates: Sequence[State], matches: Matcher) -> None:
        """``states`` are all that hold GPUs, ``matches`` the nodes that count."""
        ...


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


class Pools:
    """Free GPUs per accelerator and node."""

    def __init__(self, fleet: Fleet, matches: Matcher) -> None:
        self._nodes = {node.name: node for node in fleet.nodes}
        self.free: dict[str, dict[str, int]] = defaultdict(dict)
        """Free GPUs by pool (normalized accelerator) and node name."""
        self.total: dict[str, int] = defaultdict(int)
        home: dict[str, str] = {}
        for node in sorted(fleet.nodes, key=lambda n: n.name):
            if not (node.ready and node.schedulable and matches(node.labels)):
                continue
            for resource, count in sorted(node.gpus.items()):
                pool = pool_of_node(node.labels, resource)
                if pool is None or count <= 0:
                    continue
                self.free[pool][node.name] = self.free[pool].get(node.name, 0) + count
                self.total[pool] += count
                # A pod's request does not say which GPU resource; whole cards are by far the usual case.
                if node.name not in home or resource.endswith("/gpu"):
                    home[node.name] = pool
        for pod in fleet.pods:
            if pod.node and pod.gpus and pod.phase not in _TERMINAL and pod.node in home:
                self._take_from(home[pod.node], pod.node, pod.gpus)

    def _take_from(self, pool: str, node: str, gpus: int) -> None:
        self.free[pool][node] = max(0, self.free[pool][node] - gpus)

    def reserve(self, states: Iterable[State]) -> None:
        """Set aside GPUs for replicas that exist or are asked for already and are not on a node yet."""
        for state in states:
            if not state.current or not state.workload or not state.workload.gpus:
                continue
            size = state.workload.pods_per_replica
            placed = sum(1 for pod in state.pods if pod.node)
            waiting = state.current - placed // size
            if waiting > 0:
                self.place(state, waiting)

    def available(self, state: State) -> int:
        """Free GPUs of the variant's kind."""
        return sum(self.free.get(pool_of_state(state), {}).values())

    def place(self, state: State, replicas: int) -> int:
        """Take GPUs for up to ``replicas`` replicas; return for how many there was room."""
        assert state.workload is not None
        free = self.free.get(pool_of_state(state), {})
        names = self._eligible(free, state.workload.node_selector)
        pods = state.workload.pods_per_replica
        each = -(-state.gpus // pods)
        for done in range(replicas):
            chosen: list[str] = []
            for _ in range(pods):
                node = min((n for n in names if free[n] >= each), key=lambda n: (free[n], n), default=None)
                if node is None:
                    for name in chosen:
                        free[name] += each
                    return done
                free[node] -= each
                chosen.append(node)
        return replicas

    def _eligible(self, free: Mapping[str, int], selector: Mapping[str, str]) -> list[str]:
        wanted = {key: value.split(",") for key, value in selector.items() if key not in PRODUCT_LABELS}
        if not wanted:
            return list(free)
        return [n for n in free if all(self._nodes[n].labels.get(key) in values for key, values in wanted.items())]


def pool_of_node(labels: Mapping[str, str], resource: str) -> str | None:
    """The pool a GPU resource of a node counts in, ``None`` when its product is not known."""
    vendor, _, name = resource.partition("/")
    if vendor not in VENDORS:
        return None
    product = next((labels[label] for label in PRODUCT_LABELS if label in labels and _same_vendor(label, vendor)), None)
    if product is None:
        return None
    return _with_slice(short_name(product), name)


def _same_vendor(label: str, vendor: str) -> bool:
    return label.startswith(vendor) or (vendor == "nvidia.com" and label.startswith("cloud.google.com"))


def _with_slice(accelerator: str, resource_name: str) -> str:
    if resource_name.startswith("mig-") and "-MIG-" not in accelerator:
        return f"{accelerator}-MIG-{resource_name.removeprefix('mig-').lower()}"
    return accelerator


def pool_of_state(state: State) -> str:
    """The pool a variant draws from; ``""`` when its accelerator is not known."""
    if state.accelerator is None or state.accelerator_missing:
        return ""
    resource = state.workload.gpu_resource if state.workload is not None else ""
    return _with_slice(short_name(state.accelerator), resource.partition("/")[2])


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
