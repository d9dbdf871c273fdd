"""The objects of an onboarding, the same that a user would write. Pure.

What exists only to find out (probes, benchmarks) and what stays (model, class, service, variant) carry one label, by
which a later run finds them, and the digest of what was asked, by which two onboardings of one name refuse each other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from modelyard.autoscaling.configuration import MAX_REPLICAS, MIN_REPLICAS
from modelyard.autoscaling.fleet import ACCELERATOR_LABEL
from modelyard.benchmarks.jobs import PROBE_OF
from modelyard.benchmarks.records import patch
from modelyard.objects import Key
from modelyard.onboarding.planning.choose import Assessed, EngineSpeed
from modelyard.onboarding.request import OnboardRequest, ServingCandidate
from modelyard.workloads.rendering import ENGINE, INITIAL_REPLICAS, component, fitting

LABEL, DIGEST = "modelyard.dev/onboarding", "modelyard.dev/onboarding-request"
CLASS_KEY, REQUEST_KEY = "class.yaml", "request.json"
Document = dict[str, Any]


def base_model(asked: OnboardRequest) -> Document:
    """The model, by its URI."""
    storage: Document = {"storageUri": asked.uri}
    storage |= {"nodeSelector": asked.node_selector} if asked.node_selector else {}
    storage |= {"parameters": asked.parameters} if asked.parameters else {}
    return _object(asked, "ome.io/v1beta1", "BaseModel", asked.name, {"storage": storage})


def order(asked: OnboardRequest) -> Document:
    """What stands for the onboarding itself, and takes its probes and benchmarks along when it is deleted."""
    made = _object(asked, "v1", "ConfigMap", order_key(asked).name, None)
    return made | {"data": {REQUEST_KEY: asked.model_dump_json(exclude_defaults=True)}}


def stored_request(order: Mapping[str, Any]) -> OnboardRequest:
    """Return the request of an onboarding's ConfigMap. Raises ``ValueError`` where somebody has changed it."""
    asked = OnboardRequest.model_validate_json((order.get("data") or {}).get(REQUEST_KEY) or "")
    if asked.digest != (order["metadata"].get("annotations") or {}).get(DIGEST):
        raise ValueError(f"data.{REQUEST_KEY} is not what was asked for: delete the ConfigMap and begin again")
    return asked


def order_key(asked: OnboardRequest) -> Key:
    """Return the key of the ConfigMap that stands for the onboarding."""
    return Key(asked.namespace, f"{asked.name}-onboarding")


def probe(asked: OnboardRequest, candidate: ServingCandidate) -> Document:
    """A service of one replica, which nothing scales while it is measured."""
    return _service(asked, probe_name(asked, candidate), candidate, 1, 1)


def probe_name(asked: OnboardRequest, candidate: ServingCandidate, more: str = "") -> str:
    """Return the name of a candidate's probe and first BenchmarkJob; with ``more``, of another one."""
    return fitting(f"{asked.name}-probe-{candidate.runtime}{more}".replace(".", "-"), 50)


def benchmark(
    asked: OnboardRequest, candidate: ServingCandidate, levels: Sequence[int], added: bool = False
) -> Document:
    """What is measured of a probe: the expected request at each level. One ``added`` is named by its level."""
    service = probe_name(asked, candidate)
    name = probe_name(asked, candidate, f"-at-{levels[0]}") if added else service
    spec = {
        "endpoint": {"inferenceService": {"name": service, "namespace": asked.namespace}},
        "task": "text-to-text",
        "trafficScenarios": [f"D({asked.prompt_tokens},{asked.output_tokens})"],
        "numConcurrency": list(levels),
        "maxTimePerIteration": asked.minutes,
        "maxRequestsPerIteration": asked.requests,
        "additionalRequestParams": {"ignore_eos": "true"},
        "outputLocation": {"storageUri": asked.results},
        "resultFolderName": service,
    }
    job = _object(asked, "ome.io/v1beta1", "BenchmarkJob", name, spec)
    # Measured again later, when its probe is gone, it makes one for itself.
    job["metadata"]["annotations"][PROBE_OF] = asked.name
    return job


def chosen(asked: OnboardRequest, best: Assessed, served: str = "") -> list[Document]:
    """Service, service class and variant of the candidate that was chosen; the model is ``served`` by that name."""
    one, speed = best.candidate, best.speed
    assert speed is not None
    most = max(3, 2 * best.replicas)
    if asked.budget is not None:
        most = max(best.replicas, min(most, int(asked.budget / one.cost)))
    name, _, key = (asked.service_class or f"{class_name(asked)}/{CLASS_KEY}").partition("/")
    # It is made with what the expected load needs; from then on its replicas are the VariantAutoscaling's.
    service = _service(asked, asked.name, one, asked.min_replicas or 0, most)
    service["metadata"]["annotations"][INITIAL_REPLICAS] = str(best.replicas)
    profile, annotations = _profile(asked, one, speed)
    variant = _object(
        asked,
        "llmd.ai/v1alpha1",
        "VariantAutoscaling",
        asked.name,
        {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": component(asked.name, ENGINE)},
            "modelID": served or asked.name,
            "variantID": f"{asked.name}-{one.accelerator}-{one.count}",
            "accelerator": one.accelerator,
            "acceleratorCount": one.count,
            "variantCost": _plain(one.cost),
            "sloClassRef": {"name": name, "key": key},
            "variantProfile": profile,
        },
    )
    variant["metadata"]["labels"][ACCELERATOR_LABEL] = one.accelerator
    bounds = {MIN_REPLICAS: asked.min_replicas, MAX_REPLICAS: most}
    variant["metadata"]["annotations"] |= {name: str(value) for name, value in bounds.items() if value is not None}
    variant["metadata"]["annotations"] |= annotations
    return [service, *([] if asked.service_class else [_service_class(asked, served or asked.name)]), variant]


def _profile(asked: OnboardRequest, candidate: ServingCandidate, speed: EngineSpeed) -> tuple[Document, dict[str, str]]:
    """The profile and where it comes from, as ``modelyard profile fit`` writes them: ``refit-profiles`` reads both."""
    if speed.fit is None:
        decode = {"alpha": _plain(speed.alpha), "beta": _plain(speed.beta)}
        prefill = {"gamma": _plain(speed.gamma), "delta": _plain(speed.delta)}
        return {"perfParms": {"decodeParms": decode, "prefillParms": prefill}, "maxBatchSize": speed.max_batch}, {}
    source = f"{asked.namespace}/{probe_name(asked, candidate)}"
    body = patch(speed.fit.profile, source, speed.max_batch, engine=speed.fit.engine, measured=speed.measured)
    return body["spec"]["variantProfile"], body["metadata"]["annotations"]


def _service_class(asked: OnboardRequest, model: str) -> Document:
    entry = f"  - model: {json.dumps(model)}\n"
    entry += "".join(
        f"    {key}: {value:.12g}\n" for key, value in (("slo-ttft", asked.ttft), ("slo-tpot", asked.itl)) if value
    )
    text = f"name: {asked.name}\npriority: 1\ndata:\n{entry}"
    return _object(asked, "v1", "ConfigMap", class_name(asked), None) | {"data": {CLASS_KEY: text}}


def class_name(asked: OnboardRequest) -> str:
    """The ConfigMap with the targets."""
    return f"{asked.name}-slo"


def conflict(asked: OnboardRequest, there: Document, ours: Document) -> str:
    """Why an object that is there is not this onboarding's; empty where it is. Anybody's model of the URI will do."""
    metadata = there.get("metadata") or {}
    if (metadata.get("annotations") or {}).get(DIGEST) == asked.digest:
        return ""
    if ours["kind"] == "BaseModel" and (there.get("spec") or {}).get("storage", {}).get("storageUri") == asked.uri:
        return ""
    name = f"{ours['kind']} {asked.namespace}/{ours['metadata']['name']}"
    if (metadata.get("labels") or {}).get(LABEL):
        remedy = f"choose another name, or delete what that one has made (its label is {LABEL}={asked.name})"
        return f"{name} belongs to another onboarding of this name, which was asked for something else; {remedy}"
    return f"{name} is there and was made by no onboarding; choose another name, or delete it"


def _service(asked: OnboardRequest, name: str, candidate: ServingCandidate, least: int, most: int) -> Document:
    spec = {
        "model": {"name": asked.name, "kind": "BaseModel"},
        "runtime": {"name": candidate.runtime},
        "engine": {"minReplicas": least, "maxReplicas": most},
    }
    service = _object(asked, "ome.io/v1beta1", "InferenceService", name, spec)
    # The VariantAutoscaling scales it, by what its pods tell Prometheus.
    service["metadata"]["annotations"] |= {
        "ome.io/autoscalerClass": "external",
        "ome.io/enable-prometheus-scraping": "true",
    }
    return service


def _object(asked: OnboardRequest, version: str, kind: str, name: str, spec: Document | None) -> Document:
    metadata = {
        "name": name,
        "namespace": asked.namespace,
        "labels": {LABEL: asked.name},
        "annotations": {DIGEST: asked.digest},
    }
    made: Document = {"apiVersion": version, "kind": kind, "metadata": metadata}
    return made if spec is None else made | {"spec": spec}


def _plain(value: float) -> str:
    return f"{value:.6f}".rstrip("0").rstrip(".")
