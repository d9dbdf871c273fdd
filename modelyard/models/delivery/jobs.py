"""What is made for a model: where its files may go and come from, and the Job that brings, checks or removes them.

A Job has the least rights: no service account token, no capability, one folder of the host, and of a Secret a copy that
it owns. What runs in it is ``modelyard node``. Pure.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from modelyard.models.delivery import names
from modelyard.models.delivery.running import MODEL, WORK, Task
from modelyard.models.delivery.world import ModelNode, StoredModel, has_files
from modelyard.models.storage import (
    CA_FILE,
    CONFIG_MAP,
    Bucket,
    ClaimFolder,
    DeliverySettings,
    FetchError,
    HubModel,
    LocalFolder,
    VendorModel,
    check_bucket,
    time_limit,
)
from modelyard.objects import JOBS, REQUIRED, Key, shown
from modelyard.reconcile.plans import NOT_PERMITTED, HandOver
from modelyard.resources.ome import BaseModelSpec

FETCH, CHECK, REMOVE = "fetch", "check", "remove"
REPORT = "/dev/termination-log"
CREDENTIALS = "/var/run/modelyard/credentials"
AUTHORITIES = "/etc/modelyard"
CLAIM_FOLDER = "/mnt/claim"
CONFINED: Mapping[str, Any] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONFINED_POD = {"restartPolicy": "Never", "automountServiceAccountToken": False, "enableServiceLinks": False}
STALLED_AFTER = 120
"""Seconds for which a Job itself keeps trying while nothing moves; after that it is tried again later."""
_TIME_TO_REPORT = 60
"""Seconds that a Job has to end by itself before Kubernetes ends it, and what it would have reported."""
_TIME_BESIDE = 3600
"""Seconds for everything but the transfer: scheduling, listing, reading what is on the disk."""
_MOST_PATTERNS = 32
_LONGEST_WEIGHTS = 100
_SHAPE = re.compile(r"\.GPU[0-9]*\.([A-Z]+[0-9]+[A-Z]?)", re.IGNORECASE)
_INSTANCES = {"p4d": "A100", "p4de": "A100", "p5": "H100", "p5e": "H200", "p5en": "H200", "p6-b200": "B200"}
_WORD = re.compile(r"[A-Za-z0-9]+")
_SECRET_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?\Z")
_SECRET_KEY = re.compile(r"(?!\.\.)[A-Za-z0-9._-]{1,253}\Z")


@dataclass(frozen=True, slots=True)
class Goal:
    """Where a model's files go. ``claim`` is set where they are in one; ``root`` and ``below`` then are inside it.

    ``fingerprint`` is of all that says which content is to be where; where it changes, files are delivered anew.
    """

    root: str
    below: str
    path: str
    fingerprint: str
    claim: Key | None = None
    fetches: bool = True
    """Whether anything runs on a node for it."""


class NotAllowed(Exception):
    """A model asks for what it may not have; ``reason`` is the condition's, the message names the remedy."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def target(model: StoredModel, settings: DeliverySettings) -> Goal:
    """Where the files of a model that can be read go. Raises ``NotAllowed``."""
    assert model.spec is not None
    storage, uri, namespace = model.spec.storage, model.uri, model.key.namespace
    parameters = storage.parameters or {}
    content = [storage.storage_uri, storage.path or "", storage.key or "", parameters, storage.download_policy or ""]
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
    endpoint = parameters.get("endpoint")
    if endpoint is not None and (why := settings.hosts.refusal(endpoint, "fetched from")) is not None:
        raise NotAllowed("EndpointNotAllowed", why)
    if isinstance(uri, Bucket):
        try:
            check_bucket(uri, parameters)
        except FetchError as error:
            raise NotAllowed("InvalidSpec", f"storageUri and parameters: {error}") from None
    signed = parameters.get("auth", "").lower().endswith("principal")
    if signed and isinstance(uri, Bucket) and uri.kind == "oci" and not storage.key:
        raise NotAllowed(
            "InvalidSpec",
            f"parameters.auth: {shown(parameters['auth'])}: a principal's signature is not read here; put a customer"
            " secret key (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) into a Secret and name that in spec.storage.key",
        )
    if "secretKey" in parameters and not _SECRET_KEY.match(parameters["secretKey"]):
        raise NotAllowed(
            "InvalidSpec",
            f"parameters.secretKey: {shown(parameters['secretKey'])} is no key of a Secret; write letters, digits,"
            " '.', '_' and '-'",
        )
    if storage.key and not _SECRET_NAME.match(storage.key):
        raise NotAllowed(
            "InvalidSpec",
            f"spec.storage.key: {shown(storage.key)} is no name of a Secret; write lower-case letters, digits, '-' and"
            " '.'",
        )
    if isinstance(uri, ClaimFolder):
        home = uri.namespace or namespace
        if not home:
            raise NotAllowed(
                "InvalidURI",
                "storageUri: a cluster-scoped model names the claim's namespace: pvc://NAMESPACE:CLAIM/PATH",
            )
        if namespace and home != namespace:
            raise NotAllowed(
                NOT_PERMITTED,
                f"the claim is in namespace {home}, the model in {namespace}: a claim is mounted in its own namespace"
                " only, so put the model there, or make a ClusterBaseModel",
            )
        folder = f"{CLAIM_FOLDER}/{uri.path.strip('/')}"
        return Goal(CLAIM_FOLDER, CLAIM_FOLDER, folder, digest, Key(home, uri.claim))
    given = storage.path or (uri.path if isinstance(uri, LocalFolder) else "")
    path = given.rstrip("/") or default_path(model, settings)
    place = settings.place(namespace, path)
    if place is None:
        where = ", ".join(below for _, below in settings.allowed(namespace))
        listed = f"namespaceRoots.{namespace}" if namespace else "roots"
        raise NotAllowed(
            "PathNotAllowed",
            f"path {shown(path)} is not a plain path below {where}: leave spec.storage.path out, choose one there, or"
            f" have an administrator list a folder ({listed} in ConfigMap {CONFIG_MAP})",
        )
    return Goal(*place, path, digest, fetches=not isinstance(uri, VendorModel))


def default_path(model: StoredModel, settings: DeliverySettings) -> str:
    """Where a model goes that names no path; no namespace begins with an underscore."""
    if model.key.namespace:
        return f"{settings.models_root}/{model.key.namespace}/{model.key.name}"
    folder = "_weights" if model.subject.kind == names.FINE_TUNED_WEIGHTS else "_cluster"
    return f"{settings.models_root}/{folder}/{model.key.name}"


def accelerator(node: ModelNode) -> str:
    """The short name of a node's accelerator, such as H100; ``""`` for none that is known."""
    words = _WORD.findall(node.labels.get("nvidia.com/gpu.product", ""))
    product = next((word for word in words if word.upper() not in ("NVIDIA", "TESLA", "GEFORCE", "RTX")), "")
    return product or short_accelerator(node.labels.get("node.kubernetes.io/instance-type", ""))


def short_accelerator(instance_type: str) -> str:
    """The short name of a node's accelerator, of its instance type; unknown types are their own name."""
    if shape := _SHAPE.search(instance_type):
        return shape[1].upper()
    return _INSTANCES.get(instance_type.partition(".")[0], instance_type)


@dataclass(frozen=True, slots=True)
class Made:
    """A Job's manifest, and the Secret that it is handed."""

    manifest: Mapping[str, Any]
    hand_over: tuple[HandOver, ...] = ()


def make(
    model: StoredModel,
    goal: Goal,
    task: Task,
    settings: DeliverySettings,
    home: str,
    node: ModelNode | None,
    in_use: tuple[str, ...] = (),
    size: int | None = None,
) -> Made:
    """The Job for a task; in namespace ``home``, but where files are in a claim, beside that.

    ``in_use`` holds what pods of the node have mounted, as ``modelyard node`` takes it. ``size``: bytes of the model's
    files, where an earlier attempt has listed them.
    """
    deadline = time_allowed(settings, size)
    namespace = goal.claim.namespace if goal.claim is not None else home
    place = hashlib.sha256(
        f"{task.node} {task.uid} {task.fingerprint} {task.attempt} {task.nudge} {task.verify} {task.root}".encode()
    )
    stem = re.sub(r"[^a-z0-9]+", "-", model.key.name.lower())[:20].strip("-")
    name = f"{task.purpose}-{stem}-{model.identifier[:6]}-{place.hexdigest()[:10]}"
    given = credentials(model, task, Key(namespace, name), home)
    secret = given[0].name if given else ""
    labels = {MODEL: model.identifier}
    labels |= {"app.kubernetes.io/managed-by": "modelyard", "app.kubernetes.io/component": "model-delivery"}
    annotations = {
        WORK: json.dumps(task.model_dump(by_alias=True, exclude_defaults=True), sort_keys=True),
        "modelyard.dev/object": str(model.subject.ref),
    }
    volumes, mounts = _volumes(goal, task, settings, secret)
    container = {
        "name": task.purpose,
        "image": settings.image,
        "command": ["modelyard", "node", task.purpose],
        # Kubernetes would fill in $(NAME): what was checked is what runs.
        "args": [
            one.replace("$", "$$")
            for one in _arguments(model, goal, task, settings, node, bool(secret), in_use, deadline - _TIME_TO_REPORT)
        ],
        "env": _environment(model, goal, settings),
        "volumeMounts": mounts,
        "terminationMessagePath": REPORT,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": {
            "requests": {"cpu": settings.cpu, "memory": settings.memory},
            "limits": {"memory": settings.memory},
        },
        "securityContext": {**CONFINED, "runAsUser": settings.run_as_user},
    }
    pod: dict[str, Any] = {
        **CONFINED_POD,
        "tolerations": [dict(one) for one in settings.tolerations],
        "containers": [container],
        "volumes": volumes,
    }
    if node is not None and node.name:
        field = {"key": "metadata.name", "operator": "In", "values": [node.name]}
        pod["affinity"] = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchFields": [field]}]}}}
    manifest = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": namespace, "labels": labels, "annotations": annotations},
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": deadline,
            "template": {"metadata": {"labels": labels, "annotations": annotations}, "spec": pod},
        },
    }
    return Made(manifest, given)


def time_allowed(settings: DeliverySettings, size: int | None) -> int:
    """Return the seconds that a Job may run: for files of a known size, those of the minimum rate and an hour more."""
    if size is None or not settings.minimum_rate:
        return settings.delivery_deadline
    rate = min(settings.minimum_rate, (settings.rate or settings.minimum_rate) / 2)
    return min(settings.delivery_deadline, int(_TIME_BESIDE + time_limit(size, 0, rate, 0.0)))


def credentials(model: StoredModel, task: Task, job: Key, home: str) -> tuple[HandOver, ...]:
    """The Secret that a Job is handed, under its own name; none where it needs none."""
    if model.spec is None or task.purpose != FETCH or not (model.uri is not None and has_files(model.uri)):
        return ()
    storage = model.spec.storage
    parameters = storage.parameters or {}
    token = parameters.get("token", "") if not storage.key else ""
    if not (storage.key or token):
        return ()
    source = secret_of(model, home)
    extra = {parameters.get("secretKey", "token"): token} if token else {}
    return (HandOver(JOBS, job, job.name, source, extra),)


def secret_of(model: StoredModel, home: str) -> Key | None:
    """Return the Secret with the credentials for a model's source; ``None``: it names none, or fetches nothing."""
    if model.spec is None or not model.spec.storage.key or model.uri is None or not has_files(model.uri):
        return None
    return Key(model.key.namespace or home, model.spec.storage.key)


def _volumes(
    goal: Goal, task: Task, settings: DeliverySettings, secret: str
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    if goal.claim is not None:
        claimed = {"claimName": goal.claim.name, "readOnly": True}
        volumes: list[dict[str, Any]] = [{"name": "models", "persistentVolumeClaim": claimed}]
        mounts: list[dict[str, Any]] = [{"name": "models", "mountPath": CLAIM_FOLDER, "readOnly": True}]
    else:
        root = task.root or goal.root
        volumes = [{"name": "models", "hostPath": {"path": root, "type": "DirectoryOrCreate"}}]
        mounts = [{"name": "models", "mountPath": root}]
    volumes.append({"name": "scratch", "emptyDir": {}})
    mounts.append({"name": "scratch", "mountPath": "/tmp"})
    if secret:
        volumes.append({"name": "credentials", "secret": {"secretName": secret, "defaultMode": 0o400}})
        mounts.append({"name": "credentials", "mountPath": CREDENTIALS, "readOnly": True})
    if settings.ca_bundle and goal.claim is None:
        volumes.append({"name": "authorities", "configMap": {"name": settings.ca_bundle}})
        mounts.append({"name": "authorities", "mountPath": AUTHORITIES, "readOnly": True})
    return volumes, mounts


def _arguments(
    model: StoredModel,
    goal: Goal,
    task: Task,
    settings: DeliverySettings,
    node: ModelNode | None,
    credentials: bool,
    in_use: tuple[str, ...],
    deadline: int,
) -> list[str]:
    common = ["--root", task.root or goal.root, "--model", model.entry, "--report", REPORT]
    used = [part for path in in_use for part in ("--in-use", path)]
    if task.purpose == CHECK:
        return common
    if task.purpose == REMOVE:
        return common + used
    assert model.spec is not None
    storage = model.spec.storage
    parameters = storage.parameters or {}
    address = str(model.uri) if "revision" in parameters else storage.storage_uri
    given = ["--uri", address, "--path", goal.path, "--below", goal.below, *common, *used]
    given += ["--patience", str(STALLED_AFTER)]
    given += ["--parallel", str(settings.parallel), "--part-size", str(settings.part_size)]
    given += ["--minimum-rate", str(settings.minimum_rate), "--deadline", str(deadline)]
    given += ["--free-disk-percent", str(settings.free_disk_percent)]
    if model.key.namespace:
        given += ["--uid", model.subject.uid]
        given += ["--namespace-disk-percent", str(settings.namespace_disk_percent)]
        given += ["--files-per-namespace", str(settings.files_per_namespace)]
        if settings.bytes_per_namespace is not None:
            given += ["--bytes-per-namespace", str(settings.bytes_per_namespace)]
    endpoint = parameters.get("endpoint") or (settings.hub_endpoint if isinstance(model.uri, HubModel) else None)
    if endpoint:
        given.append(f"--endpoint={endpoint}")
        if "endpoint" in parameters and not settings.hosts.names(endpoint):
            given.append("--public")
    if region := parameters.get("region"):
        given.append(f"--region={region}")
    if style := parameters.get("addressingStyle"):
        given.append(f"--addressing-style={style}")
    for option in ("include", "exclude"):
        patterns = [p for p in map(str.strip, parameters.get(option, "").split(",")) if p]
        given += [f"--{option}={pattern}" for pattern in patterns[:_MOST_PATTERNS]]
    if parameters.get("allFormats", "").lower() == "true":
        given.append("--all-formats")
    if weights := parameters.get("weights", "").strip():
        given.append(f"--weights={weights[:_LONGEST_WEIGHTS]}")
    if storage.download_policy == "ReuseIfExists":
        given += ["--policy", "ReuseIfExists"]
    if settings.rate is not None:
        given += ["--bandwidth", str(settings.rate)]
    if credentials:
        given += ["--credentials", CREDENTIALS]
        if name := parameters.get("secretKey"):
            given.append(f"--token-key={name}")
    if node is not None and _by_accelerator(model) and (short := accelerator(node)):
        given += ["--accelerator", short]
    return given


def _by_accelerator(model: StoredModel) -> bool:
    """Whether there are files for each accelerator, of which a node takes its own (TensorRT-LLM engines)."""
    spec = model.spec
    if not isinstance(spec, BaseModelSpec) or spec.model_format is None or spec.model_format.name != "TensorRTLLM":
        return False
    return (spec.additional_metadata or {}).get("type", "Serving") == "Serving"


def _environment(model: StoredModel, goal: Goal, settings: DeliverySettings) -> list[dict[str, str]]:
    env = {"HOME": "/tmp", "DO_NOT_TRACK": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    if model.key.namespace and not settings.node_identity:
        # What the node may read in the cloud is not for whoever may write a BaseModel.
        env |= {"AWS_EC2_METADATA_DISABLED": "true", "GCE_METADATA_HOST": "metadata.invalid"}
        env |= dict.fromkeys(("AZURE_FEDERATED_TOKEN_FILE", "AWS_WEB_IDENTITY_TOKEN_FILE"), "")
    if settings.ca_bundle and goal.claim is None:
        env |= dict.fromkeys(("SSL_CERT_FILE", "AWS_CA_BUNDLE"), f"{AUTHORITIES}/{CA_FILE}")
    if goal.claim is None:
        env |= settings.proxy_environment
    return [{"name": name, "value": value} for name, value in env.items()]
