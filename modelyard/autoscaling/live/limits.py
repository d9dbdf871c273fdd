"""Read the objects that bound the replicas of workloads: InferenceServices, their runtimes, and Models."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from typing import TypeVar

from modelyard.autoscaling.fleet import MODELS, SERVICES, Owners, owner_kind
from modelyard.autoscaling.live import wants
from modelyard.cluster import ClusterError, Unavailable, UnknownKind
from modelyard.objects import Workload
from modelyard.reconcile.kernel import Mirror
from modelyard.reconcile.plans import Want

T = TypeVar("T")
log = logging.getLogger(__name__)


async def read_owners(mirror: Mirror, workloads: Iterable[Workload]) -> Owners:
    """Return the owners of these workloads, as far as they may be listed. Raises ``Unavailable``."""
    places: dict[str, set[str]] = {SERVICES.kind: set(), MODELS.kind: set()}
    for workload in workloads:
        if (kind := owner_kind(workload.owner)) is not None:
            places[kind.kind].add(workload.id.namespace)
    errors: dict[tuple[str, str], str] = {}
    services = await _read(mirror, wants.OWNING_SERVICES, places[SERVICES.kind], errors)
    models = await _read(mirror, wants.OWNING_MODELS, places[MODELS.kind], errors)
    named = {service.key.namespace for service in services if service.runtime[1]}
    runtimes = [runtime for want in wants.OWNING_RUNTIMES for runtime in await _read(mirror, want, named, errors)]
    return Owners(
        {service.key: service for service in services},
        {model.key: model for model in models},
        {runtime.key: runtime for runtime in runtimes},
        errors,
    )


async def _read(mirror: Mirror, want: Want[T], places: Collection[str], errors: dict[tuple[str, str], str]) -> list[T]:
    """A kind without namespaces is read whole where there is any of them."""
    if not places:
        return []
    spaces = sorted(places) if want.kind.namespaced else []
    try:
        store = await mirror.read(want, spaces, partial=True)
    except UnknownKind:
        return []
    except Unavailable:
        raise
    except ClusterError as error:
        log.warning("replica bounds of %s objects are not read: %s", want.kind.kind, error)
        errors |= {(want.kind.kind, space): str(error) for space in spaces or ("",)}
        return []
    errors |= {(want.kind.kind, space): str(error) for space, error in store.errors.items()}
    return list(store.within(spaces))
