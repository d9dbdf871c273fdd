"""What would restart live pods though nobody has asked for it: it is reported, and waits until it is allowed. Pure.

A runtime or a model has changed beneath a service; or its workloads were made by another controller, OME's above all,
and would be made otherwise here, or beside them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from modelyard.objects import few
from modelyard.workloads.rendering import Rendered, StoredChild
from modelyard.workloads.roll_out.changes import Changes, Identity, differences, identity
from modelyard.workloads.roll_out.resolution import ACCEPT, GENERATION, Resolved, recorded, unasked
from modelyard.workloads.roll_out.standing import is_workload
from modelyard.workloads.roll_out.world import StoredService

ADOPTION: Final = "adoption"
"""In the annotation ``ACCEPT``: that workloads of another controller are made as they are here."""
_PODS = ("spec.template", "spec.leaderWorkerTemplate")
_MOST = 10


def held(
    service: StoredService,
    resolved: Resolved,
    result: Rendered,
    diff: Changes,
    owned: Mapping[Identity, StoredChild],
    beside: Sequence[str] = (),
) -> tuple[str, ...]:
    """Why what would restart live pods is not done; nothing: it is. ``beside`` names what another controller has made
    of the service, of a kind that nothing is made of here."""
    if beside and not _adopted(service):
        made = "which another controller made and which should go first"
        return tuple(f"pods would be made beside those of {one}, {made}" for one in beside)
    alive = {name: one for name, one in owned.items() if is_workload(one)}
    if not {one.component for one in alive.values()}.issuperset(result.modes):
        return ()
    changed = {identity(one.body) for one in diff.apply} | {identity(one) for one in diff.delete}
    if not changed.intersection(alive):
        return ()
    return (*unasked(service, resolved), *_unadopted(service, diff, alive))


def _unadopted(service: StoredService, diff: Changes, alive: Mapping[Identity, StoredChild]) -> Iterator[str]:
    if _adopted(service):
        return
    for child in diff.apply:
        if (one := alive.get(identity(child.body))) is not None:
            lines = [line for line in differences(one.body, child.body) if line.startswith(_PODS)]
            if lines:
                said = "; ".join(few(lines, _MOST))
                yield f"{child.kind} {child.name}, which another controller made, would be: {said}"
    for body in diff.delete:
        if identity(body) in alive:
            yield f"{body['kind']} {body['metadata']['name']}, which another controller made, would go"


def _adopted(service: StoredService) -> bool:
    allowed = set(map(str.strip, service.annotations.get(ACCEPT, "").split(",")))
    return GENERATION in recorded(service) or bool(allowed & {"always", ADOPTION})
