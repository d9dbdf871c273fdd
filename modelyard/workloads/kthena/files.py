"""Where a backend's model and adapters are, and how they come there. Pure.

Three ways. A model in a claim is used where it is. One on the nodes' disks (``cacheURI: hostpath://``) is a BaseModel,
which Modelyard delivers: pods mount it read-only, on nodes that have it, so that no tenant writes to a node. Any other
is fetched by an init container, once for all pods that share the cache.

Source: Kthena Model controller reference, "Paths" and "Init containers", with their repairs.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from modelyard.models.delivery import names as model_names
from modelyard.models.storage import CLAIM, CONFIG_MAP, FetchError, cache_path, kthena_model_path, parse
from modelyard.objects import REQUIRED, Key, required_terms
from modelyard.resources import ENDPOINT_VARIABLES, LIVE_ADAPTERS, LoraAdapter
from modelyard.workloads.kthena.setup import Setup
from modelyard.workloads.rendering import Body, Problems, Refusal, fitting, plain

_NOWHERE: Final = "hostpath://models"
ADAPTERS: Final = "/adapters"
STALLED_AFTER: Final = 300
"""Seconds for which a download goes on trying while nothing moves."""
_TOKENS: Final = ("HF_TOKEN", "HF_AUTH_TOKEN")
_KEYS: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "ACCESS_KEY", "SECRET_KEY")
_HUB: Final = "https://huggingface.co"
_COPY: Final = """\
[ -e "$2" ] || { rm -rf "$2.$HOSTNAME" && cp -rL "$1" "$2.$HOSTNAME" && \
{ mv -T "$2.$HOSTNAME" "$2" || rm -rf "$2.$HOSTNAME"; }; }; [ -e "$2" ]"""
"""A folder to where it is not yet. Pods that share the place each make a copy, and the first one stays."""


@dataclass(frozen=True, slots=True)
class AdapterFiles:
    """A LoRA adapter, and the folder its files are in."""

    name: str
    source: str
    path: str


@dataclass(slots=True)
class BackendFiles:
    """What pods need to see the model at ``path``. ``mounts`` are the engine's, ``objects`` further children."""

    path: str
    volumes: list[Body] = field(default_factory=list)
    mounts: list[Body] = field(default_factory=list)
    init: list[Body] = field(default_factory=list)
    node_selector: dict[str, str] = field(default_factory=dict)
    objects: list[Body] = field(default_factory=list)
    adapters: list[AdapterFiles] = field(default_factory=list)
    writable: Body = field(default_factory=dict)
    """Where adapters that come later go to, as a mount."""


def files(setup: Setup) -> BackendFiles:
    """Return the files of a backend. Raises ``Refusal`` with all that is wrong with them."""
    problems, backend_files = Problems(), BackendFiles("")
    backend, path = setup.backend, setup.path
    with problems.collect():
        if backend.cache_uri:
            _place(backend.cache_uri, f"{path}.cacheURI")
        if (backend.cache_uri or "").startswith("pvc://"):
            _claim(backend.cache_uri or "", f"{path}.cacheURI", bare=True)
    with problems.collect():
        (_claim if backend.model_uri.startswith("pvc://") else _source)(backend.model_uri, f"{path}.modelURI")
    if not problems:
        with problems.collect():
            backend_files = _weights(setup)
    with problems.collect():
        _adapters(setup, backend_files)
    problems.raise_all()
    return backend_files


def _weights(setup: Setup) -> BackendFiles:
    backend, path = setup.backend, setup.path
    cache, home = backend.cache_uri or "", ""
    if cache:
        home = _place(cache, f"{path}.cacheURI")
    claim = _claim(cache, f"{path}.cacheURI", bare=True)[0] if cache.startswith("pvc://") else ""
    if backend.model_uri.startswith("pvc://"):
        found = _in_claim(setup, cache, claim, home)
    elif cache.startswith("hostpath://"):
        found = BackendFiles(kthena_model_path(cache, backend.model_uri))
        _deliver(setup, found, home)
    else:
        found = BackendFiles(kthena_model_path(cache or _NOWHERE, backend.model_uri))
        home = home or cache_path(_NOWHERE)
        source = {"persistentVolumeClaim": {"claimName": claim}} if claim else {"emptyDir": {}}
        found.volumes.append(_volume(setup, source))
        found.mounts.append({"name": found.volumes[0]["name"], "mountPath": home, "readOnly": True})
        found.writable = {"name": found.volumes[0]["name"], "mountPath": home}
        name, where = f"{setup.model.name}-model-downloader", f"{path}.modelURI"
        found.init.append(_fetching(setup, name, backend.model_uri, where, found.path, found.writable))
    return found


def _in_claim(setup: Setup, cache: str, cached: str, home: str) -> BackendFiles:
    where = f"{setup.path}.modelURI"
    claim, inner = _claim(setup.backend.model_uri, where)
    if cache.startswith("hostpath://"):
        raise Refusal(
            "InvalidSpec",
            f"{setup.path}.cacheURI",
            "a model in a claim is not copied to the nodes' disks",
            "leave cacheURI out: the claim is mounted where it is used; or name a claim to copy to",
        )
    source = f"/{claim}/{inner}".rstrip("/")
    name = fitting(f"{setup.backend.name}-source")
    mounted: Body = {"name": name, "persistentVolumeClaim": {"claimName": claim}}
    mount = {"name": name, "mountPath": f"/{claim}", "readOnly": True}
    if cached in ("", claim):
        return BackendFiles(source, [mounted], [mount])
    copied = BackendFiles(kthena_model_path(cache, setup.backend.model_uri))
    copied.volumes += [_volume(setup, {"persistentVolumeClaim": {"claimName": cached}}), mounted]
    copied.writable = {"name": copied.volumes[0]["name"], "mountPath": home}
    copied.mounts.append({**copied.writable, "readOnly": True})
    step = _init(setup, f"{setup.model.name}-model-downloader", [copied.writable, mount])
    copied.init.append({**step, "command": ["sh", "-c", _COPY, "copy"], "args": [source, copied.path]})
    return copied


def _adapters(setup: Setup, found: BackendFiles) -> None:
    """The adapters beside the model; where that place is not writable, in a folder of their own."""
    given = setup.backend.lora_adapters or []
    where = f"{setup.path}.loraAdapters"
    fetched = [one for one in given if not one.artifact_url.startswith("pvc://")]
    if (fetched or setup.live_adapters) and not found.writable:
        found.volumes.append({"name": "adapters", "emptyDir": {}})
        found.mounts.append({"name": "adapters", "mountPath": ADAPTERS, "readOnly": True})
        found.writable = {"name": "adapters", "mountPath": ADAPTERS}
    problems = Problems()
    for place, adapter in enumerate(given):
        with problems.collect():
            _adapter(setup, found, place, adapter, f"{where}[{place}].artifactURL")
    problems.raise_all()


def _adapter(setup: Setup, backend_files: BackendFiles, place: int, adapter: LoraAdapter, where: str) -> None:
    if adapter.artifact_url.startswith("pvc://"):
        backend_files.adapters.append(_mounted(setup, backend_files, adapter, where))
        return
    _source(adapter.artifact_url, where)
    root = backend_files.writable["mountPath"]
    folder = posixpath.join(root, posixpath.basename(kthena_model_path("", adapter.artifact_url)))
    backend_files.adapters.append(AdapterFiles(adapter.name, adapter.artifact_url, folder))
    if not setup.live_adapters:
        name = f"{setup.model.name}-lora-downloader-{place}"
        backend_files.init.append(_fetching(setup, name, adapter.artifact_url, where, folder, backend_files.writable))


def _mounted(setup: Setup, found: BackendFiles, one: LoraAdapter, where: str) -> AdapterFiles:
    claim, inner = _claim(one.artifact_url, where)
    if setup.live_adapters:
        remedy = f"use hf:// or s3://, or set {LIVE_ADAPTERS} to false: then adapters come with a restart"
        raise Refusal("InvalidSpec", where, "a claim cannot be mounted into a pod that runs", remedy)
    if not any(mount["mountPath"] == f"/{claim}" for mount in found.mounts):
        name = fitting(f"{claim}-adapters")
        found.volumes.append({"name": name, "persistentVolumeClaim": {"claimName": claim}})
        found.mounts.append({"name": name, "mountPath": f"/{claim}", "readOnly": True})
    return AdapterFiles(one.name, one.artifact_url, f"/{claim}/{inner}".rstrip("/"))


def _place(cache: str, where: str) -> str:
    home = cache_path(cache)
    if not home or any(part in (".", "..") for part in home.split("/")) or not home.isprintable():
        raise Refusal("InvalidSpec", where, "names no folder", "write hostpath:///FOLDER or pvc://CLAIM, without '..'")
    return home


def _claim(uri: str, where: str, *, bare: bool = False) -> tuple[str, str]:
    parts = [part for part in uri.removeprefix("pvc://").split("/") if part]
    if not parts or not CLAIM.match(parts[0]) or any(part in (".", "..") for part in parts):
        raise Refusal("InvalidSpec", where, "names no claim of this namespace", "write pvc://CLAIM/PATH, without '..'")
    if bare and len(parts) > 1:
        raise Refusal("InvalidSpec", where, "has more than a claim", f"write pvc://{parts[0]}")
    return parts[0], "/".join(parts[1:])


def _source(uri: str, where: str) -> None:
    try:
        parse(uri)
    except FetchError as error:
        raise Refusal(
            "InvalidSpec", where, str(error), "write hf://OWNER/NAME, s3://BUCKET/PATH or pvc://CLAIM/PATH"
        ) from None


def _volume(setup: Setup, source: Mapping[str, Any]) -> Body:
    return {"name": fitting(f"{setup.backend.name}-weights"), **source}


def _fetching(setup: Setup, name: str, uri: str, where: str, path: str, mount: Body) -> Body:
    _source(uri, where)
    if uri.startswith("hf://") and "@" not in uri and any(one["name"] == "HF_REVISION" for one in setup.environment):
        uri += "@$(HF_REVISION)"
    key = f"model.{posixpath.basename(path)}"
    arguments = ["--uri", uri, "--root", mount["mountPath"], "--path", path, "--model", key]
    arguments += ["--policy", "ReuseIfExists", "--patience", str(STALLED_AFTER), "--report", "/dev/termination-log"]
    return {**_init(setup, name, [mount]), "command": ["modelyard", "node", "fetch"], "args": arguments}


def _init(setup: Setup, name: str, mounts: list[Body]) -> Body:
    own = [{"name": "DO_NOT_TRACK", "value": "1"}, {"name": "HF_HUB_DISABLE_TELEMETRY", "value": "1"}]
    taken, delivery = {one["name"] for one in setup.environment}, setup.delivery
    if delivery.hub_endpoint:
        own.append({"name": "HF_ENDPOINT", "value": delivery.hub_endpoint})
    if not taken & delivery.proxy_environment.keys():  # Its own proxy, in whichever spelling.
        own += [{"name": variable, "value": value} for variable, value in delivery.proxy_environment.items()]
    found: Body = {
        "name": fitting(name),
        "image": delivery.image,
        "env": [*setup.environment, *(one for one in own if one["name"] not in taken)],
        "resources": {
            "requests": {"cpu": delivery.cpu, "memory": delivery.memory},
            "limits": {"memory": delivery.memory},
        },
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }
    if setup.backend.env_from:
        found["envFrom"] = plain(setup.backend.env_from)
    return found


def beside(setup: Setup, name: str, command: list[str], arguments: list[str], mounts: list[Body]) -> Body:
    """A container of our image that runs beside the engine, with the backend's variables."""
    light = {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": setup.delivery.memory}}
    return {**_init(setup, name, mounts), "command": command, "args": arguments, "resources": light}


def _deliver(setup: Setup, found: BackendFiles, home: str) -> None:
    """On the node the files are where the namespace may have any: of the folder of all models in its own part."""
    uri, where, namespace, delivery = setup.backend.model_uri, setup.path, setup.model.namespace, setup.delivery
    _source(uri, f"{where}.modelURI")
    path = found.path
    if home == delivery.models_root and delivery.place(namespace, path) is None:
        path = f"{home}/{namespace}/{posixpath.basename(path)}"
    if delivery.place(namespace, path) is None:
        allowed = ", ".join(f"hostpath://{below}" for _, below in delivery.allowed(namespace))
        problem = "is no folder in which this namespace may have files"
        remedy = f"write {allowed}, leave it out, or have an administrator list the folder for this namespace"
        remedy += f" (namespaceRoots.{namespace} in ConfigMap {CONFIG_MAP})"
        raise Refusal("PathNotAllowed", f"{where}.cacheURI", problem, remedy)
    revision = setup.literal("HF_REVISION") if uri.startswith("hf://") and "@" not in uri else None
    storage: Body = {"storageUri": f"{uri}@{revision}" if revision else uri, "path": path}
    storage |= {"downloadPolicy": "ReuseIfExists", **_credentials(setup, uri)}
    if affinity := _nodes(setup):
        storage["nodeAffinity"] = affinity
    spec = {"storage": storage}
    name = fitting(f"{setup.model.name}-{posixpath.basename(path)[:10]}")
    body = {"apiVersion": "ome.io/v1beta1", "kind": "BaseModel", "spec": spec}
    found.objects.append({**body, "metadata": setup.metadata(name)})
    label = model_names.label_key(model_names.BASE_MODELS, Key(setup.model.namespace, name))
    found.node_selector[label] = "Ready"
    found.volumes.append(_volume(setup, {"hostPath": {"path": path, "type": "Directory"}}))
    found.mounts.append({"name": found.volumes[-1]["name"], "mountPath": found.path, "readOnly": True})


def _credentials(setup: Setup, uri: str) -> Body:
    kind, parameters, secrets = uri.partition("://")[0], dict[str, str](), dict[str, str]()
    where = f"{setup.path}.env"
    for one in setup.environment:
        name, value = one["name"], one.get("value")
        origin = one.get("valueFrom")
        reference = origin.get("secretKeyRef") if isinstance(origin, Mapping) else None
        if name in (*_TOKENS, *_KEYS) and isinstance(reference, Mapping):
            secrets[str(reference.get("name"))] = str(reference.get("key"))
        elif name in _TOKENS and value and kind == "hf":
            parameters["token"] = str(value)
        elif name in _KEYS and value and kind in ("s3", "obs"):
            remedy = "put both keys into a Secret, and name that in envFrom"
            raise Refusal("InvalidSpec", where, f"{name} is written out, and a model on nodes needs a Secret", remedy)
        elif name in ENDPOINT_VARIABLES.get(kind, ()) and str(value or "").rstrip("/") not in ("", _HUB):
            parameters["endpoint"] = str(value)
    for one in setup.backend.env_from or ():
        if isinstance(named := one.get("secretRef"), Mapping) and not secrets:
            secrets[str(named.get("name"))] = "HF_TOKEN"
    if len(secrets) > 1:
        remedy = "put the credentials into one Secret"
        raise Refusal("InvalidSpec", where, f"the credentials are in {len(secrets)} Secrets", remedy)
    for name, key in secrets.items():
        if kind == "hf":
            parameters["secretKey"] = key
        return {"key": name, "parameters": parameters} if parameters else {"key": name}
    return {"parameters": parameters} if parameters else {}


def _nodes(setup: Setup) -> Body | None:
    terms: list[Any] = []
    for worker in setup.backend.workers:
        own = required_terms(plain(worker.affinity or {}).get("nodeAffinity"))
        if not own:
            return None
        terms += [one for one in own if one not in terms]
    return {REQUIRED: {"nodeSelectorTerms": terms}}
