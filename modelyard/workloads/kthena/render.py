"""A Model in, its children out, or why there are none: field and remedy. Pure; nothing a tenant writes makes it raise.

Equal input gives equal children, byte for byte in their canonical form: no needless restart ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from modelyard.resources.registry import Model
from modelyard.workloads.kthena import engines
from modelyard.workloads.kthena.files import BackendFiles, files
from modelyard.workloads.kthena.scaling import UNIFIED, scaling
from modelyard.workloads.kthena.setup import REVISION, Existing, ModelSettings, Setup, digest, understand
from modelyard.workloads.kthena.templates import LIST_FILE, adapter_list, adapter_list_name
from modelyard.workloads.kthena.traffic import model_route, model_server
from modelyard.workloads.kthena.workloads import mode, workloads
from modelyard.workloads.values import (
    Abilities,
    Body,
    ChildObject,
    Note,
    Refusal,
    Refused,
    Rendered,
    canonical,
    plain,
    read_resource,
    unreadable,
)

_UNSCALED: Final = frozenset(("replicas",))


def render_model(
    obj: Mapping[str, Any],
    abilities: Abilities,
    settings: ModelSettings | None = None,
    existing: Existing | None = None,
) -> Rendered | Refused:
    """The children of a Model as the API sends it (or a file has it), in the order in which they are applied.

    ``modes`` says how each backend's pods are kept; a child's component is its backend. ``existing`` is what keeps an
    autoscaler's replicas: without it every workload is as it is first made.
    """
    model = read_resource(Model, obj)
    return model if isinstance(model, Refused) else rendered(model, abilities, settings, existing)


def rendered(
    model: Model, abilities: Abilities, settings: ModelSettings | None = None, existing: Existing | None = None
) -> Rendered | Refused:
    """The same of a Model that has been read."""
    try:
        found = _render(model, abilities, settings or ModelSettings(), existing or Existing())
        for child in found.children:
            canonical(child.body).encode()
        return found
    except Refusal as refusal:
        return refusal.refused
    except Exception as error:  # whatever a tenant has thought of
        return unreadable(error)


def _render(model: Model, abilities: Abilities, settings: ModelSettings, existing: Existing) -> Rendered:
    setups = [understand(model, i, abilities, settings, existing) for i in range(len(model.spec.backends))]
    _distinct(setups)
    children: dict[tuple[str, str], ChildObject] = {}

    def add(body: Body, component: str = "") -> None:
        children.setdefault((body["kind"], body["metadata"]["name"]), ChildObject(_stamped(body), component))

    notes: list[Note] = []
    for setup in setups:
        found, name = files(setup), setup.backend.name
        notes += _notes(setup, found)
        for body in found.objects:
            add(body, name)
        if setup.live_adapters:
            add(_adapters(setup, found), name)
        for body in workloads(setup, found):
            add(body, name)
    for setup in setups:
        add(model_server(setup), setup.backend.name)
    add(model_route(model, setups))
    for body in scaling(model, setups):
        add(body)
    modes = {setup.backend.name: mode(setup) for setup in setups}
    return Rendered(tuple(children.values()), notes=tuple(notes), modes=modes)


def _stamped(body: Body) -> Body:
    """The child with the hash of what it is made of: what an autoscaler changes, and labels, are no part of it."""
    metadata = body["metadata"]
    spec = {name: value for name, value in body.get("spec", {}).items() if name not in _UNSCALED}
    content = {"spec": spec, "data": body.get("data"), "annotations": metadata.get("annotations")}
    labels = {**metadata["labels"], REVISION: digest(content)}
    result: Body = plain({**body, "metadata": {**metadata, "labels": labels}})
    return result


def _adapters(setup: Setup, found: BackendFiles) -> Body:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": setup.metadata(adapter_list_name(setup)),
        "data": {LIST_FILE: adapter_list(found.adapters)},
    }


def _distinct(setups: list[Setup]) -> None:
    """Two backends whose workloads would have one name; the hash in a shortened name makes that all but impossible."""
    seen: dict[str, str] = {}
    for setup in setups:
        if other := seen.get(setup.name):
            remedy = "rename one of the backends"
            raise Refusal("NameInUse", f"{setup.path}.name", f"gives {setup.name}, as {other} does", remedy)
        seen[setup.name] = setup.backend.name


def _notes(setup: Setup, found: BackendFiles) -> list[Note]:
    """What is not as it was asked for."""
    backend = setup.backend
    notes = []
    if setup.disaggregated and any((one.pods or 1) > 1 for one in backend.workers):
        notes.append("pods has no effect: every instance of a role is one pod")
    if setup.engine is engines.MINDIE:
        notes.append("the image's own entrypoint runs the engine, which finds the model at MODEL_PATH")
    if setup.live_adapters and not found.adapters:
        notes.append("the engine waits for LoRA adapters: loraAdapters names none")
    policies = (setup.model.spec.autoscaling_policy, backend.autoscaling_policy)
    if any(m.metric_name.startswith(UNIFIED) for policy in policies if policy for m in policy.metrics):
        notes.append(f"metrics called {UNIFIED}... are read under the engine's own names")
    return [Note("Remark", f"backend {backend.name}: {text}", backend.name) for text in notes]
