"""The pods of a backend: what runs in them, with which variables, probes and volumes. Pure.

Source: Kthena Model controller reference, "Environment", "vLLM", "vLLMDisaggregated", "SGLang, MindIE" and their
repairs: start-up probes instead of fixed delays, a bounded drain, options that reach the engine on several nodes.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any, Final

from modelyard.resources import ModelWorker
from modelyard.workloads.kthena.files import AdapterFiles, BackendFiles, beside
from modelyard.workloads.kthena.setup import OF_GROUP, REVISION, MetricsRelay, Setup, digest, role_of
from modelyard.workloads.rendering import Body, checked_runner, engine_options as config, engines, fitting, lora, plain

ADAPTER_LIST: Final = "/etc/modelyard/adapters"
"""Folder of the file that says which adapters a pod is to have; a change comes there without a restart."""
LIST_FILE: Final = "adapters.json"
_GROUP_VARIABLES: Final = (
    ("ENTRY_ADDRESS", "LWS_LEADER_ADDRESS"),
    ("GROUP_SIZE", "LWS_GROUP_SIZE"),
    ("WORKER_INDEX", "LWS_WORKER_INDEX"),
)
_ON_PODS: Final = {"POD_NAME": "metadata.name", "NAMESPACE": "metadata.namespace"}
_ETHERNET: Final = dict.fromkeys(("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "HCCL_SOCKET_IFNAME"), "eth0")
_APART: Final[Mapping[str, Mapping[str, str]]] = {
    "prefill": {"HF_HUB_OFFLINE": "1"},
    "decode": {"HF_HUB_OFFLINE": "1", **_ETHERNET},
}


def template(setup: Setup, files: BackendFiles, worker: ModelWorker, group: str, *, entry: bool = True) -> Body:
    """The template of the pods of a worker; ``entry`` for those that take requests, else of the others of a group."""
    role = role_of(worker)
    place = setup.backend.workers.index(worker)
    given = checked_runner({"resources": worker.resources or {}}, f"{setup.path}.workers[{place}]")
    containers = [_engine(setup, files, worker, given["resources"], entry)]
    volumes = [*files.volumes, {"name": "shm", "emptyDir": {"medium": "Memory"}}]
    if setup.live_adapters and entry:
        containers.append(_adapters(setup, files))
        volumes.append({"name": "adapter-list", "configMap": {"name": adapter_list_name(setup), "optional": True}})
    if setup.metrics_relay is not None and entry and role != "controller":
        containers.append(_metrics(setup, setup.metrics_relay))
    labels = setup.pod_labels(role, group, entry)
    spread = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
    spec: Body = {
        "automountServiceAccountToken": False,
        "containers": containers,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": engines.GRACE_SECONDS,
        "topologySpreadConstraints": [{**spread, "labelSelector": {"matchLabels": selecting(labels)}}],
        "volumes": volumes,
    }
    if files.init:
        spec["initContainers"] = files.init
    if files.node_selector:
        spec["nodeSelector"] = files.node_selector
    if worker.affinity:
        spec["affinity"] = plain(worker.affinity)
    revision = digest({"labels": labels, "spec": spec})
    marks = {REVISION: revision, f"{OF_GROUP}/revision": revision}
    return {"metadata": {"labels": {**labels, **marks}}, "spec": spec}


def selecting(labels: Mapping[str, str]) -> dict[str, str]:
    """Of a pod's labels those by which its workload knows it: they never change."""
    return {f"{OF_GROUP}/{name}": labels[f"{OF_GROUP}/{name}"] for name in ("name", "group-name", "role", "entry")}


def adapter_list_name(setup: Setup) -> str:
    """The ConfigMap that says which adapters the pods of a backend are to have."""
    return fitting(f"{setup.name}-adapters")


def adapter_list(adapters: list[AdapterFiles]) -> str:
    """What it says."""
    found = [{"name": one.name, "source": one.source, "path": one.path} for one in adapters]
    return json.dumps(found, sort_keys=True, indent=2)


def _engine(setup: Setup, files: BackendFiles, worker: ModelWorker, resources: Body, entry: bool) -> Body:
    engine, role = setup.engine, role_of(worker)
    image = worker.image or setup.settings.images[setup.backend.type]
    command, arguments = _command(setup, files, worker, image, entry)
    found: Body = {
        "name": "engine",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "env": _environment(setup, files, role, entry),
        "volumeMounts": [*files.mounts, {"name": "shm", "mountPath": "/dev/shm"}],
    }
    if command:
        found["command"] = command
    if arguments:
        found["args"] = arguments
    if resources:
        found["resources"] = resources
    if setup.backend.env_from:
        found["envFrom"] = plain(setup.backend.env_from)
    if not entry or role == "controller":
        return found
    port = setup.port
    probe: Body = {"httpGet": {"path": engine.health, "port": port}} if engine.health else {"tcpSocket": {"port": port}}
    found["ports"] = [{"name": "http", "containerPort": port, "protocol": "TCP"}]
    found["startupProbe"] = {**probe, "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 360}
    found["readinessProbe"] = {**probe, "periodSeconds": 5, "timeoutSeconds": 5, "failureThreshold": 3}
    found["livenessProbe"] = {**probe, "periodSeconds": 10, "timeoutSeconds": 10, "failureThreshold": 30}
    if command and engine.busy:
        program = engines.drain(engine, port, setup.metrics_path)
        found["lifecycle"] = {"preStop": {"exec": {"command": ["python3", "-c", program]}}}
    return found


def _environment(setup: Setup, files: BackendFiles, role: str, entry: bool) -> list[Body]:
    """The backend's own variables first: theirs win. A group's come last, whatever they say."""
    found = {one["name"]: one for one in setup.environment}

    def default(name: str, value: Any) -> None:
        found.setdefault(name, {"name": name, "value" if isinstance(value, str) else "valueFrom": value})

    if entry:
        for name, path in _ON_PODS.items():
            default(name, {"fieldRef": {"fieldPath": path}})
        for name, text in setup.engine.environment.items():
            default(name, text)
    if setup.engine is engines.MINDIE:
        default("MODEL_PATH", files.path)
    elif setup.disaggregated:
        for name, text in _APART.get(role, {}).items():
            default(name, text)
        if role == "prefill":
            default("HCCL_IF_IP", {"fieldRef": {"fieldPath": "status.podIP"}})
    if setup.pods > 1:
        for name, source in _GROUP_VARIABLES:
            found.pop(name, None)
            default(name, f"$({source})")
    return list(found.values())


def _options(setup: Setup, files: BackendFiles, worker: ModelWorker) -> dict[str, tuple[str, ...]]:
    """What the engine is told: ours, then the user's, which win."""
    engine, given = setup.engine, setup.options[worker.type]
    ours: dict[str, tuple[str, ...]] = {engine.model_flag: (files.path,), **engine.always}
    ours |= {"port": (str(setup.port),), "served-model-name": (setup.served,)}
    if setup.live_adapters or files.adapters:
        ours["enable-lora"] = ()
        if not setup.live_adapters:
            ours |= lora.options(engine, (lora.Adapter(adapter.name, adapter.path) for adapter in files.adapters))
    if ranks := _tensor_parallel(setup, worker):
        ours[engine.tensor_parallel[0]] = (str(ranks),)
    if setup.pods > 1 and engine is engines.VLLM:
        ours["distributed-executor-backend"] = ("ray",)
    if setup.pods > 1 and engine is engines.SGLANG:
        ours |= {"nnodes": (str(setup.pods),), "node-rank": ("$(WORKER_INDEX)",)}
        ours["dist-init-addr"] = (f"$(ENTRY_ADDRESS):{engines.RENDEZVOUS}",)
    return {**{name: values for name, values in ours.items() if name not in given}, **given}


def _tensor_parallel(setup: Setup, worker: ModelWorker) -> int:
    """0 where the engine's default is right, or the user sets ranks. Engines use one accelerator by default, and SGLang
    does not start with more data-parallel ranks for attention than tensor-parallel ones.
    """
    engine, given = setup.engine, setup.options[worker.type]
    devices = setup.accelerators(worker) * setup.pods
    if not engine.tensor_parallel or any(name in given for name in engine.tensor_parallel):
        return 0
    for names in engine.multiplying:
        values = next((given[name] for name in names if name in given), ("1",))
        if engine.shared_by.get(names[0]) in given:
            continue
        text = values[0] if values else ""
        factor = int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0
        if not factor or devices % factor:
            return 0
        devices //= factor
    return devices if devices > 1 else 0


def _command(
    setup: Setup, files: BackendFiles, worker: ModelWorker, image: str, entry: bool
) -> tuple[list[str], list[str]]:
    engine = setup.engine
    if engine is engines.MINDIE:
        return [], config.words(setup.options[worker.type])
    options = config.words(_options(setup, files, worker))
    if image.startswith(engines.SIMULATED):
        return [], options
    if setup.pods == 1 or engine is not engines.VLLM:
        return list(engine.command), options
    if not entry:
        return ["bash", "-c"], [f"exec bash {engines.RAY_SCRIPT} worker --ray_address=$(ENTRY_ADDRESS)"]
    ray = f"bash {engines.RAY_SCRIPT} leader --ray_cluster_size={setup.pods}"
    if devices := setup.accelerators(worker):
        ray += f" --num-gpus={devices}"
    return ["bash", "-c"], [f"{ray} && exec {shlex.join([*engine.command, *options])}"]


def _adapters(setup: Setup, files: BackendFiles) -> Body:
    arguments = ["--list", f"{ADAPTER_LIST}/{LIST_FILE}", "--root", files.writable["mountPath"]]
    arguments += ["--engine", f"http://127.0.0.1:{setup.port}"]
    mounts = [files.writable, {"name": "adapter-list", "mountPath": ADAPTER_LIST, "readOnly": True}]
    return beside(setup, "adapters", ["modelyard", "node", "adapters"], arguments, mounts)


def _metrics(setup: Setup, relay: MetricsRelay) -> Body:
    arguments = ["--engine", relay.engine, "--port", str(relay.port), "--path", setup.metrics_path]
    if setup.engine is not engines.MINDIE:
        arguments += ["--names", setup.engine.server]
    container = beside(setup, "runtime", ["modelyard", "node", "metrics"], arguments, [])
    probe = {"httpGet": {"path": "/health", "port": relay.port}, "periodSeconds": 10, "timeoutSeconds": 5}
    return {
        **{name: value for name, value in container.items() if name not in ("env", "envFrom", "volumeMounts")},
        "ports": [{"name": "runtime", "containerPort": relay.port, "protocol": "TCP"}],
        "readinessProbe": probe,
    }
