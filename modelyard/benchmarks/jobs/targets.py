"""Targets and loads of a benchmark: a BenchmarkJob's spec against what is there. Pure.

A service is measured where it answers, by the name its engine gives its model. Any other address is a tenant's word:
it is one that an administrator has listed, or a service of the job's own namespace.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain, product
from typing import Any, Final
from urllib.parse import urlsplit

from modelyard.benchmarks.jobs.settings import BenchmarkSettings
from modelyard.benchmarks.jobs.world import MOST_RUNS, TOKENIZER, EnginePod, Waits, digest
from modelyard.benchmarks.records import check_request_parameters, check_scenario
from modelyard.models.delivery import BASE_MODELS, base_models
from modelyard.models.storage import DeliverySettings, HubModel
from modelyard.objects import NAMESPACES, PODS, Key, condition, mapping
from modelyard.reconcile.plans import NOT_PERMITTED, World, refusal
from modelyard.resources.ome import BenchmarkJobSpec, Endpoint
from modelyard.workloads.rendering import ModelFiles, Refusal, effective, files, names
from modelyard.workloads.roll_out import INFERENCE_SERVICES, MODEL, RUNTIME, Offered, StoredService, recorded

LONGEST_RUN: Final = 1440
"""Minutes."""
LEVELS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
SCENARIOS: Final[Mapping[str, tuple[str, ...]]] = {
    "text-to-text": ("N(480,240)/(300,150)", "D(100,100)", "D(100,1000)", "D(2000,200)", "D(7800,200)"),
    "text-to-embeddings": ("E(64)", "E(128)", "E(256)", "E(512)", "E(1024)"),
    **dict.fromkeys(("image-to-text", "image-to-embeddings"), ("I(512,512)", "I(1024,512)", "I(2048,2048)")),
}
"""What is measured where a spec does not say."""
_BACKENDS = ("openai", "vllm", "sglang", "cohere", "oci-cohere")
_TOKENIZER = re.compile(r"(/|[A-Za-z0-9])[A-Za-z0-9._/@:-]{0,499}\Z")


@dataclass(frozen=True, slots=True)
class Load:
    """One run: a scenario at a concurrency."""

    scenario: str
    concurrency: int

    def __str__(self) -> str:
        return f"{self.scenario} × {self.concurrency}"


@dataclass(frozen=True, slots=True)
class BenchmarkTarget:
    """What is measured. ``standing`` is the state that all runs have in common, ``life`` which pods serve a run.

    ``files`` are the model's, where the tokenizer is read from; ``key`` stands for what two loads would share.
    """

    service: str
    url: str
    public: bool
    backend: str
    model: str
    tokenizer: str
    key: str
    standing: str = ""
    life: str = ""
    files: ModelFiles | None = None


def loads(spec: BenchmarkJobSpec) -> list[Load]:
    """All runs, in the order in which they are made. Raises ``Refusal`` for runs that could measure nothing."""
    scenarios = spec.traffic_scenarios or SCENARIOS[spec.task]
    levels = spec.num_concurrency or LEVELS
    if (number := len(scenarios) * len(levels)) > MOST_RUNS:
        problem = f"{len(scenarios)} scenarios at {len(levels)} levels are {number} runs, of which {MOST_RUNS} are kept"
        raise Refusal("TooManyRuns", "spec.numConcurrency", problem, "leave some out, or make several BenchmarkJobs")
    if spec.max_time_per_iteration > LONGEST_RUN:
        problem = f"{spec.max_time_per_iteration} minutes are more than a day"
        raise Refusal("InvalidSpec", "spec.maxTimePerIteration", problem, f"write at most {LONGEST_RUN}")
    for scenario in spec.traffic_scenarios or ():
        check_scenario(scenario, "spec.trafficScenarios")
    check_request_parameters(spec.additional_request_params or {}, scenarios, "spec.")
    return [Load(*one) for one in product(scenarios, levels)]


def target(
    spec: BenchmarkJobSpec,
    tokenizer: str,
    key: Key,
    settings: BenchmarkSettings,
    delivery: DeliverySettings,
    world: World,
) -> BenchmarkTarget:
    """What is measured. Raises ``Refusal`` and ``Waits``."""
    if tokenizer and (not _TOKENIZER.match(tokenizer) or ".." in tokenizer):
        problem = f"{tokenizer[:100]!r} is neither an absolute folder nor a hub's id"
        raise Refusal("InvalidSpec", f"metadata.annotations[{TOKENIZER}]", problem, "write such as meta-llama/Llama-3")
    if spec.endpoint.endpoint is not None:
        return _direct(spec.endpoint.endpoint, tokenizer, key, settings)
    reference = spec.endpoint.inference_service
    assert reference is not None
    place = Key(reference.namespace, reference.name)
    namespaces = {one.name: one for one in world[NAMESPACES].all()} if place.namespace != key.namespace else {}
    if (why := refusal(key.namespace, place.namespace, namespaces)) is not None:
        raise Refusal(NOT_PERMITTED, "spec.endpoint.inferenceService.namespace", why, "or measure one of its own")
    service: StoredService | None = world[INFERENCE_SERVICES].get(place)
    if service is None or service.subject.deleting:
        raise Waits("ServiceNotFound", f"InferenceService {place} is not there: create it, or name another one")
    return _service(service, tokenizer, key, settings, delivery, world)


def _direct(endpoint: Endpoint, tokenizer: str, key: Key, settings: BenchmarkSettings) -> BenchmarkTarget:
    where, url = "spec.endpoint.endpoint", endpoint.url.rstrip("/").removesuffix("/v1")
    own = is_of_namespace(url, key.namespace)
    if not own and (why := settings.hosts.refusal(url, "measured")) is not None:
        remedy = f"or measure a service of namespace {key.namespace}"
        raise Refusal("EndpointNotAllowed", f"{where}.url", why, remedy)
    if not endpoint.model_name:
        raise Refusal("InvalidSpec", f"{where}.modelName", "is empty", "write the name to send in requests")
    public = not own and not settings.hosts.names(url)
    shared = digest(key.namespace, url)
    name = endpoint.model_name
    return BenchmarkTarget(url, url, public, endpoint.api_format, name, tokenizer or name, shared)


def is_of_namespace(url: str, namespace: str) -> bool:
    """Return whether this is a plain URL of a Service of the namespace."""
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").rstrip(".")
        plain = bool(host) and (parts.port is None or parts.port > 0) and not (parts.username or parts.query)
    except ValueError:
        return False
    found = host.removesuffix(".cluster.local").removesuffix(".svc").split(".")
    known = host.endswith((".svc", ".svc.cluster.local")) or host.count(".") == 1
    return plain and known and len(found) == 2 and found[1] == namespace


def _service(
    service: StoredService,
    tokenizer: str,
    key: Key,
    settings: BenchmarkSettings,
    delivery: DeliverySettings,
    world: World,
) -> BenchmarkTarget:
    status, called = service.status, f"InferenceService {service.key}"
    ready = condition(status, "Ready")
    if service.problem is not None:
        raise Waits("ServiceNotReady", f"{called} cannot be read: {service.problem}")
    if ready.get("status") != "True" or status.get("observedGeneration") != service.subject.generation:
        raise Waits("ServiceNotReady", f"{called} is not ready: {ready.get('message') or 'nothing is told of it yet'}")
    pods: list[EnginePod] = list(world[PODS].by("service", (service.key.namespace, service.label)))
    engines = [one for one in pods if one.component in (names.ENGINE, names.DECODER)]
    if not any(one.ready for one in engines):
        raise Waits("ServiceScaledToZero", f"{called} has no pod that is ready: give it at least one replica")
    if not all(one.ready for one in pods):
        behind = next(one.key.name for one in pods if not one.ready)
        raise Waits("ServiceNotReady", f"{called}: pod {behind} is not ready yet")
    offered = (status.get("url"), mapping(status.get("address")).get("url"))
    urls = [one.rstrip("/") for one in offered if isinstance(one, str) and one]
    inside = (one for one in urls if is_of_namespace(one, service.key.namespace))
    listed = (one for one in urls if settings.hosts.refusal(one, "measured") is None)
    if (url := next(chain(inside, listed), None)) is None:
        raise Waits("ServiceNotReady", f"{called} has no URL inside the cluster in its status")
    made, kept = recorded(service), _model(service, world)
    replicas = {kind: sum(one.component == kind for one in pods) for kind in sorted({one.component for one in pods})}
    inputs = ", ".join(made[name] for name in (RUNTIME, MODEL) if made.get(name))
    standing = f"generation {service.subject.generation}" + (f" with {inputs}" if inputs else "")
    standing += "".join(f", {number} {kind}" for kind, number in replicas.items())
    read, mounted = (tokenizer, None) if tokenizer else _tokenizer(service, kept, key, delivery)
    name = next((one.model for one in engines if one.model), "vllm-model")
    public = not is_of_namespace(url, service.key.namespace) and not settings.hosts.names(url)
    life = digest(*sorted(one.life for one in pods))
    return BenchmarkTarget(
        str(service.key), url, public, _backend(service), name, read, digest(service.key), standing, life, mounted
    )


def _model(service: StoredService, world: World) -> Offered | None:
    kind, _, text = recorded(service).get(MODEL, "").partition("/")
    name = text.rpartition("@")[0]
    space = service.key.namespace if kind == BASE_MODELS.kind else ""
    store = base_models(space)
    return world[store].get(Key(space, name)) if store.kind == kind else None


def _tokenizer(
    service: StoredService, model: Offered | None, key: Key, delivery: DeliverySettings
) -> tuple[str, ModelFiles | None]:
    remedy = f"name a hub's id, or a folder that podOverride mounts, in the annotation {TOKENIZER}"
    where = "spec.endpoint.inferenceService"
    if model is None:
        raise Refusal("TokenizerUnknown", where, f"it is not known which model {service.key} serves", remedy)
    stored = model.served.stored
    # A namespace that lets others measure its services has not given them the files of its models.
    if stored.key.namespace in ("", key.namespace):
        found = files(model.served, key.namespace, delivery, where)
        if found.volume:
            return found.path, found
    if isinstance(stored.uri, HubModel):
        return stored.uri.repository, None
    raise Refusal("TokenizerUnknown", where, f"the files of model {stored.key.name} are not to be had", remedy)


def _backend(service: StoredService) -> str:
    resource = service.resource
    spec: Any = effective(resource) if resource is not None else {}  # type: ignore[arg-type]
    runner = (spec.get("engine") or {}).get("runner") or {}
    said = {one.get("name"): one.get("value") for one in runner.get("env") or () if isinstance(one, Mapping)}
    asked = str((spec.get("model") or {}).get("protocolVersion") or said.get("PROTOCOL_VERSION") or "openai")
    if asked.lower() not in _BACKENDS:
        problem, remedy = f"it speaks {asked[:60]!r}", f"known are {', '.join(_BACKENDS)}"
        raise Refusal("BackendUnknown", "spec.endpoint.inferenceService", problem, remedy)
    return asked.lower()
