"""What other loops may scale: a fleet that is split by labels or namespaces must not have two writers for a workload.

A loop reads only its own share, and an edit of a label can move an object from one share to another, so every tick
looks at the neighbours as well. Who may not list them has a namespace to itself.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TypeVar

from modelyard.autoscaling.bindings import Rival
from modelyard.autoscaling.live import wants
from modelyard.autoscaling.live.collect import read_namespaces
from modelyard.autoscaling.reading import workload_of
from modelyard.autoscaling.reading.bindings import BindingSpec, within_reach
from modelyard.cluster import Forbidden, UnknownKind
from modelyard.reconcile.kernel import Mirror
from modelyard.reconcile.plans import Want

T = TypeVar("T")

log = logging.getLogger(__name__)


async def reachable(mirror: Mirror, bindings: tuple[BindingSpec, ...]) -> tuple[BindingSpec, ...]:
    """The bindings as far as they may reach. Namespaces are read where one names another than its own."""
    places = [target.workload.namespace for spec in bindings if spec.crosses_namespaces for target in spec.targets]
    if not places:
        return bindings
    namespaces = await read_namespaces(mirror, places)
    return tuple(within_reach(spec, namespaces) for spec in bindings)


def binding_claims(bindings: Iterable[BindingSpec]) -> list[Rival]:
    """What these bindings may scale."""
    return [
        Rival(
            f"AutoscalingPolicyBinding {spec.view.key}, which is older and belongs to another loop",
            frozenset(id_ for target in spec.targets for id_ in target.candidates),
            spec.view.key,
            spec.view.created,
        )
        for spec in bindings
        if not spec.view.deleting
    ]


async def claims_beyond(
    mirror: Mirror, homes: Iterable[str], spaces: tuple[str, ...], label_selector: str
) -> list[Rival]:
    """What may scale workloads in ``homes`` and was not listed with the share of ``spaces`` and ``label_selector``.

    Bindings inside ``spaces`` are known to the caller, and without a selector so are the variants.
    """
    foreign = [home for home in homes if spaces and home not in spaces]
    rivals = binding_claims(await reachable(mirror, tuple(await _read(mirror, wants.RIVAL_BINDINGS, foreign))))
    for variant in await _read(mirror, wants.RIVAL_VARIANTS, sorted(homes) if label_selector else foreign):
        workload = workload_of(variant)
        if workload is not None and workload.name and not variant.deleting:
            who = f"VariantAutoscaling {variant.key}"
            rivals.append(Rival(who, frozenset({workload}), variant.key, variant.created, binding=False))
    return rivals


async def _read(mirror: Mirror, want: Want[T], places: list[str]) -> Iterable[T]:
    if not places:
        return ()
    try:
        return (await mirror.read(want, places)).within(places)
    except (UnknownKind, Forbidden) as error:
        log.debug("what other loops scale in %s is not known: %s", ", ".join(places), error)
        return ()
