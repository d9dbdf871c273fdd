"""A Model in, its children out, or why there are none: field and remedy. Pure; nothing a tenant writes makes it raise.

Equal input gives equal children, byte for byte in their canonical form: no needless restart ever.
"""

from __future__ import annotations

from typing import Final

from modelyard.resources import Model
from modelyard.workloads.kthena.files import BackendFiles, files
from modelyard.workloads.kthena.scaling import scaling
from modelyard.workloads.kthena.setup import REVISION, Existing, ModelSettings, Setup, digest, understand
from modelyard.workloads.kthena.templates import LIST_FILE, adapter_list, adapter_list_name
from modelyard.workloads.kthena.traffic import model_routes, model_server
from modelyard.workloads.kthena.unified import UNIFIED
from modelyard.workloads.kthena.workloads import mode, workloads
from modelyard.workloads.rendering import (
    HOST_PATHS,
    Abilities,
    Body,
    ChildObject,
    Note,
    Problems,
    Refusal,
    Refused,
    Rendered,
    Right,
    canonical,
    engines,
    naming_backends,
    plain,
    unreadable,
)

MAX_ADAPTERS: Final = 1000
"""Adapters of one Model, over all backends. Each ten names take a ModelRoute, and a thousand half a second to plan."""
_UNSCALED: Final = frozenset(("replicas",))


def rendered(
    model: Model, abilities: Abilities, settings: ModelSettings | None = None, existing: Existing | None = None
) -> Rendered | Refused:
    """Return the children of a Model in order of application; ``existing`` keeps the replicas an autoscaler set."""
    try:
        found = _render(model, abilities, settings or ModelSettings(), existing or Existing())
        for child in found.children:
            canonical(child.body).encode()
        return found
    except Refusal as refusal:
        return naming_backends(refusal.refused, [backend.name for backend in model.spec.backends])
    except Exception as error:  # whatever a tenant has thought of
        return unreadable(error)


def _render(model: Model, abilities: Abilities, settings: ModelSettings, existing: Existing) -> Rendered:
    count = sum(len(backend.lora_adapters or ()) for backend in model.spec.backends)
    if count > MAX_ADAPTERS:
        text = f"loraAdapters of all backends together are {count}, of {MAX_ADAPTERS} at most"
        raise Refusal("TooManyAdapters", "spec.backends", text, "share them out among several Models")
    problems, setups = Problems(), list[Setup]()
    for index in range(len(model.spec.backends)):
        setup = understand(model, index, abilities, settings, existing, problems)
        setups += [setup] if setup is not None else []
    with problems.collect():
        _distinct(setups)
    all_files: dict[str, BackendFiles] = {}
    for setup in setups:
        with problems.collect():
            all_files[setup.name] = files(setup)
    routing, policies = list[Body](), list[Body]()
    with problems.collect():
        routing += model_routes(model)
    with problems.collect():
        if model.spec.autoscaling_policy is None or len(setups) == len(model.spec.backends):
            policies += scaling(model, setups)
    problems.raise_all()
    children: dict[tuple[str, str], ChildObject] = {}

    def add(body: Body, component: str = "") -> None:
        children.setdefault((body["kind"], body["metadata"]["name"]), ChildObject(_stamped(body), component))

    notes: list[Note] = []
    for setup in setups:
        backend_files, name = all_files[setup.name], setup.backend.name
        notes += _notes(setup, backend_files)
        for body in backend_files.objects:
            add(body, name)
        if setup.live_adapters:
            about, data = setup.metadata(adapter_list_name(setup)), {LIST_FILE: adapter_list(backend_files.adapters)}
            add({"apiVersion": "v1", "kind": "ConfigMap", "metadata": about, "data": data}, name)
        with problems.collect():
            for body in workloads(setup, backend_files):
                add(body, name)
    problems.raise_all()
    for setup in setups:
        add(model_server(setup), setup.backend.name)
    for body in (*routing, *policies):
        add(body)
    modes = {setup.backend.name: mode(setup) for setup in setups}
    # Folders of models on nodes, which were checked: nothing else of a Model gives its pods a right.
    folders = (volume["hostPath"] for files_ in all_files.values() for volume in files_.volumes if "hostPath" in volume)
    permitted = frozenset(Right(HOST_PATHS, "volumes.hostPath", str(folder)) for folder in folders)
    return Rendered(tuple(children.values()), notes=tuple(notes), modes=modes, rights=permitted)


def _stamped(body: Body) -> Body:
    """The child with the hash of what it is made of: what an autoscaler changes, and labels, are no part of it."""
    metadata = body["metadata"]
    spec = {name: value for name, value in body.get("spec", {}).items() if name not in _UNSCALED}
    content = {"spec": spec, "data": body.get("data"), "annotations": metadata.get("annotations")}
    labels = {**metadata["labels"], REVISION: digest(content)}
    result: Body = plain({**body, "metadata": {**metadata, "labels": labels}})
    return result


def _distinct(setups: list[Setup]) -> None:
    """Two backends whose workloads would have one name; the hash in a shortened name makes that all but impossible."""
    seen: dict[str, str] = {}
    for setup in setups:
        if other := seen.get(setup.name):
            remedy = "rename one of the backends"
            raise Refusal("NameInUse", f"{setup.path}.name", f"gives {setup.name}, as {other} does", remedy)
        seen[setup.name] = setup.backend.name


def _notes(setup: Setup, found: BackendFiles) -> list[Note]:
    backend = setup.backend
    notes = []
    if setup.engine is engines.MINDIE:
        notes.append("the image's own entrypoint runs the engine, which finds the model at MODEL_PATH")
        notes.append("MindIE's metrics are on a port of their own, so routers count only the requests they sent")
    if setup.live_adapters and not found.adapters:
        notes.append("the engine waits for LoRA adapters: loraAdapters names none")
    policies = (setup.model.spec.autoscaling_policy, backend.autoscaling_policy)
    if any(m.metric_name.startswith(UNIFIED) for policy in policies if policy for m in policy.metrics):
        notes.append(f"metrics called {UNIFIED}... are read under the engine's own names")
    return [Note("Remark", f"backend {backend.name}: {text}", backend.name) for text in notes]
