"""A Model's backend, checked and understood: what all of its children are made from. Pure.

Source: Kthena Model controller reference, "Names and labels", "Model validation" and "From a backend to pods".
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from modelyard.models.storage import DeliverySettings
from modelyard.objects import container_gpus, describe_url_problem, shown
from modelyard.resources import (
    DISAGGREGATED,
    LIVE_ADAPTERS,
    MILLION,
    RUNTIME_METRICS_PATH,
    RUNTIME_PORT,
    RUNTIME_URL,
    Model,
    ModelBackend,
    ModelWorker,
)
from modelyard.workloads.rendering import (
    MOST_OBJECTS,
    Abilities,
    Body,
    Problems,
    Refusal,
    canonical,
    checked_runner,
    engine_options as config,
    engines,
    fitting,
    label_value,
    plain,
)

LWS: Final = "leaderworkerset.x-k8s.io/v1"
OF_MODEL, OF_GROUP = "registry.volcano.sh", "modelinfer.volcano.sh"
REVISION: Final = f"{OF_MODEL}/revision"
ENTRY: Final = {f"{OF_GROUP}/entry": "true"}
OWNED_BY: Final = "modelyard.dev/model-owner"
_GROUPED: Final = 40
"""Characters of the name of a backend with groups: what makes pods for it adds to it, and Kubernetes to that."""
SCALED_ROLES: Final = frozenset(("prefill", "decode"))
"""Roles of a disaggregated backend that have more pods with every replica."""
_ROLES: Final = {"server": "leader"}
"""What the pods of a worker are called; the other types keep their names."""


METRICS: Final = "/metrics"
_RELAY_PORT: Final = 8100


class MetricsRelay(NamedTuple):
    """A container that shows an engine's metrics at ``port``; ``engine`` is the URL where it reads them."""

    port: int
    engine: str


def metrics_relay(port: str | None, url: str | None, engine_port: int, path: str) -> MetricsRelay | None:
    """Return the relay of ``RUNTIME_PORT`` and ``RUNTIME_URL``, in ``path``; ``None``: neither. Raises ``Refusal``."""
    if port is None and url is None:
        return None
    number = _RELAY_PORT
    if port is not None:
        number = int(port) if re.fullmatch("[0-9]{1,5}", port, re.ASCII) else 0
        if not 1 <= number <= 65535:
            text = f"{RUNTIME_PORT} {shown(port)} is no port"
            raise Refusal("InvalidSpec", path, text, "write a whole number from 1 to 65535")
    if number == engine_port:
        text = f"{RUNTIME_PORT} is {number}, at which the engine itself listens"
        raise Refusal("InvalidSpec", path, text, "choose another port, or remove it: metrics are at the engine's port")
    if url is not None and (problem := describe_url_problem(url)) is not None:
        raise Refusal("InvalidSpec", path, f"{RUNTIME_URL}: {problem}", "write the engine's URL, or remove it")
    return MetricsRelay(number, f"http://localhost:{engine_port}" if url is None else url.strip().rstrip("/"))


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """What an administrator says about Models. ``images`` are those of engines, by the type of the backend."""

    images: Mapping[str, str] = field(default_factory=lambda: {type: one.image for type, one in engines.OF.items()})


@dataclass(frozen=True, slots=True)
class Existing:
    """What is there already: groups or replicas by the name of the workload, and workloads that somebody scales."""

    replicas: Mapping[str, int] = field(default_factory=dict)
    scaled: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Setup:
    """One backend. ``path`` is its field, ``name`` that of its workload; ``port`` is the engine's."""

    model: Model
    backend: ModelBackend
    path: str
    name: str
    engine: engines.ServingEngine
    port: int
    served: str
    options: Mapping[str, Mapping[str, tuple[str, ...]]]
    """By type of worker."""
    connector: str | None
    settings: ModelSettings
    delivery: DeliverySettings
    existing: Existing
    grouped: bool
    """Whether a group is several pods, each an object of its own."""
    lws: bool
    metrics_relay: MetricsRelay | None = None

    @property
    def governed(self) -> bool:
        """Whether somebody scales it, so that its replicas are not ours to say."""
        by_policy = self.model.spec.autoscaling_policy or self.backend.autoscaling_policy
        return by_policy is not None or self.name in self.existing.scaled

    @property
    def disaggregated(self) -> bool:
        return self.backend.type in DISAGGREGATED

    @property
    def pods(self) -> int:
        """Pods of one instance."""
        return 1 if self.disaggregated else max(1, self.backend.workers[0].pods or 1)

    @property
    def environment(self) -> list[Body]:
        """The backend's own variables; of those of one name the last."""
        return list({one["name"]: one for one in plain(self.backend.env or [])}.values())

    def literal(self, name: str) -> str | None:
        """What the backend's own variable says; ``None`` where it is not there or comes from elsewhere."""
        value = next((one.get("value") for one in self.environment if one["name"] == name), None)
        return value if isinstance(value, str) and value else None

    @property
    def metrics_path(self) -> str:
        path = self.literal(RUNTIME_METRICS_PATH) or METRICS
        return path if path.startswith("/") else f"/{path}"

    @property
    def metric_endpoint(self) -> Body:
        """Port and path of the metrics of its pods: of the engine itself unless they are shown elsewhere, too."""
        relay = self.metrics_relay
        return {"port": self.port, "uri": self.metrics_path} if relay is None else {"port": relay.port, "uri": METRICS}

    @property
    def live_adapters(self) -> bool:
        return (self.literal(LIVE_ADAPTERS) or "").lower() in ("true", "1") and self.engine is engines.VLLM

    def labels(self) -> dict[str, str]:
        return labels(self.model, self.backend.name)

    def pod_labels(self, role: str, group: str, entry: bool = True) -> dict[str, str]:
        """By which routers, autoscalers and dashboards know a pod. The first four select."""
        return {
            f"{OF_GROUP}/name": label_value(self.name),
            f"{OF_GROUP}/group-name": group,
            f"{OF_GROUP}/role": role,
            f"{OF_GROUP}/entry": "true" if entry else "false",
            f"{OF_GROUP}/role-id": f"{role}-0",
            **self.labels(),
        }

    def metadata(self, name: str) -> Body:
        return metadata(self.model, name, self.labels())

    def accelerators(self, worker: ModelWorker) -> int:
        """Accelerators of one pod."""
        given = checked_runner({"resources": worker.resources or {}}, self.path)
        return sum(container_gpus(given).values())


def labels(model: Model, backend: str = "") -> dict[str, str]:
    """Of every child of a Model; ``backend`` is empty for those of the Model as a whole."""
    return {
        f"{OF_MODEL}/model-name": label_value(model.name),
        f"{OF_MODEL}/backend-name": label_value(backend),
        f"{OF_MODEL}/managed-by": OF_MODEL,
        f"{OF_MODEL}/model-uid": label_value(uid(model)),
    }


def uid(model: Model) -> str:
    """The Model's uid; empty where it was read from a file."""
    given = (model.metadata.model_extra or {}).get("uid")
    return given if isinstance(given, str) else ""


def metadata(model: Model, name: str, labels: Mapping[str, str]) -> Body:
    """Of a child."""
    found: Body = {"name": name, "namespace": model.namespace, "labels": dict(labels)}
    if model.spec.owner:
        found["annotations"] = {OWNED_BY: model.spec.owner}
    return found


def digest(body: Mapping[str, Any]) -> str:
    """The revision of what is rendered: equal for equal objects."""
    return hashlib.sha256(canonical(body).encode()).hexdigest()[:10]


def role_of(worker: ModelWorker) -> str:
    """What the pods of a worker are called."""
    return _ROLES.get(worker.type, worker.type)


def client_name(model: Model) -> str:
    """The name that clients ask for."""
    return model.spec.name or model.name


def understand(
    model: Model, index: int, abilities: Abilities, settings: ModelSettings, existing: Existing, problems: Problems
) -> Setup | None:
    """Return one backend of a Model, ``None`` if nothing more can be said; with ``problems`` it is for checks only."""
    backend, path = model.spec.backends[index], f"spec.backends[{index}]"
    engine, disaggregated = engines.OF[backend.type], backend.type in DISAGGREGATED
    lws = bool(abilities.version("LeaderWorkerSet", LWS))
    many = not disaggregated and (backend.workers[0].pods or 1) > 1
    grouped = (disaggregated and backend.autoscaling_policy is None) or (many and not lws)
    name = fitting(f"{model.name}-{backend.name}", _GROUPED if many or disaggregated else 63)
    with problems.collect():
        if backend.name != label_value(backend.name):
            raise Refusal("InvalidSpec", f"{path}.name", "is longer than 63 characters", "write a shorter one")
    given: dict[str, Mapping[str, tuple[str, ...]]] = {}
    ports: dict[str, int] = {}
    for place, worker in enumerate(backend.workers):
        where = f"{path}.workers[{place}]"
        with problems.collect():
            _check_worker(worker, where, backend, settings)
        with problems.collect():
            given[worker.type] = config.options(worker.config, f"{where}.config", engine.negatable)
        with problems.collect():
            port = config.port(worker.config, f"{where}.config")
            if worker.type in ("server", "prefill", "decode"):
                ports[worker.type] = engine.port if port is None else port
    with problems.collect():
        if len(set(ports.values())) > 1:
            text = f"the workers' ports differ: {', '.join(f'{type} {port}' for type, port in ports.items())}"
            raise Refusal("InvalidSpec", f"{path}.workers", text, "give all the same port")
    configs: dict[str, tuple[Mapping[str, Any] | None, str]] = {
        one.type: (one.config, f"{path}.workers[{i}].config") for i, one in enumerate(backend.workers)
    }
    connector = None
    with problems.collect():
        connector = config.connector(configs) if backend.type == "vLLMDisaggregated" else None
    named = next((n for w in ("server", "decode") if w in configs and (n := config.served_name(configs[w][0]))), None)
    setup = Setup(
        model,
        backend,
        path,
        name,
        engine,
        next(iter(ports.values()), engine.port),
        named or model.name,
        given,
        connector,
        settings,
        abilities.settings.models,
        existing,
        grouped,
        lws,
    )
    readable = False
    with problems.collect():
        checked_runner({"env": backend.env or []}, path)
        readable = True
    for check in (_check_scaling, _check_replicas, _check_groups, _check_roles, _check_adapters):
        with problems.collect():
            check(setup)
    if not readable:
        return None
    relay = None
    with problems.collect():
        relay = metrics_relay(setup.literal(RUNTIME_PORT), setup.literal(RUNTIME_URL), setup.port, f"{path}.env")
    return replace(setup, metrics_relay=relay)


def _check_worker(worker: ModelWorker, path: str, backend: ModelBackend, settings: ModelSettings) -> None:
    problems = Problems()
    with problems.collect():
        if worker.replicas == 0:
            remedy = "write 1 or more, or leave it out; for no pods at all set the backend's minReplicas to 0"
            raise Refusal("InvalidSpec", f"{path}.replicas", "is 0, so that the backend could never have a pod", remedy)
    with problems.collect():
        if engines.OF[backend.type] is engines.MINDIE and not worker.image:
            raise Refusal(
                "BackendNotRunnable",
                f"{path}.image",
                f"a backend of type {backend.type} is run by its image's own entrypoint, and there is no image",
                "name an image that starts the engine, or use the type vLLM or SGLang",
            )
        if not (worker.image or settings.images.get(backend.type)):
            raise Refusal("InvalidSpec", f"{path}.image", "is missing, and there is no default", "name an image")
    problems.raise_all()


def _check_scaling(setup: Setup) -> None:
    backend, path = setup.backend, setup.path
    if setup.pods > 1 and setup.engine is engines.MINDIE:
        remedy = "leave it out; several pods of one instance are for vLLM and SGLang"
        raise Refusal("BackendNotRunnable", f"{path}.workers[0].pods", f"is {setup.pods}", remedy)
    if setup.disaggregated and setup.model.spec.autoscaling_policy is not None:
        raise Refusal(
            "InvalidSpec",
            f"{path}.type",
            f"a backend of type {backend.type} has roles that scale apart, which one policy of the model cannot do",
            "give the backend an autoscalingPolicy of its own, and remove that of the model",
        )


def _check_replicas(setup: Setup) -> None:
    for place, worker in enumerate(setup.backend.workers):
        if (most := setup.backend.max_replicas * (worker.replicas or 1)) > MILLION:
            text = f"{worker.replicas}, times maxReplicas {setup.backend.max_replicas}, is {most}"
            where = f"{setup.path}.workers[{place}].replicas"
            raise Refusal("InvalidSpec", where, text, f"lower one of the two, to {MILLION} together")


def _check_groups(setup: Setup) -> None:
    backend, path = setup.backend, setup.path
    if setup.grouped and setup.pods > 1 and setup.governed:
        raise Refusal(
            "LeaderWorkerSetMissing",
            f"{path}.workers[0].pods",
            f"instances of {setup.pods} pods cannot be scaled here, for the cluster has no {LWS}",
            "install LeaderWorkerSet, or remove the autoscalingPolicy and give minReplicas and maxReplicas one value",
        )
    # Roles that run apart are replicas of one instance.
    instances = 1 if setup.disaggregated else backend.workers[0].replicas or 1
    if setup.grouped and (made := backend.min_replicas * setup.pods * instances) > MOST_OBJECTS:
        raise Refusal(
            "TooManyGroups",
            f"{path}.minReplicas",
            f"the groups would be {made} objects of their own, at most {MOST_OBJECTS} are made",
            "lower it, split the load over several Models, or install LeaderWorkerSet for a backend of several pods",
        )


def _check_roles(setup: Setup) -> None:
    backend, path = setup.backend, setup.path
    if backend.type == "MindIEDisaggregated" and not any(one.type == "coordinator" for one in backend.workers):
        remedy = "add a worker of type coordinator, which takes the requests"
        raise Refusal("BackendNotRunnable", f"{path}.workers", "there is no coordinator", remedy)


def _check_adapters(setup: Setup) -> None:
    backend, path = setup.backend, setup.path
    if backend.lora_adapters and not setup.engine.lora_flag:
        remedy = "remove loraAdapters, or use the type vLLM or SGLang"
        raise Refusal("InvalidSpec", f"{path}.loraAdapters", f"{backend.type} takes no adapters here", remedy)
