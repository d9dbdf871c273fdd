"""Rich BenchmarkJobs: the runs that they ask for, and the pods that measure."""

from __future__ import annotations

from typing import Any

from benchmark_world import Benchmarks
from field_mutations import InvalidObject, Scenario

from modelyard.reconcile.plans.spec_warning import SPEC_WARNING
from modelyard.resources import BenchmarkJob, ResourceInvalid

Object = dict[str, Any]
NODES: Object = {
    "nodeSelector": {"pool": "data"},
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]
        }
    },
}
UNUSED: Object = {"path": "/mnt/data", "schemaPath": "schema.json", "downloadPolicy": "ReuseIfExists"}
SPEC: Object = {
    "huggingFaceSecretReference": {"name": "hub"},
    "endpoint": {"inferenceService": {"name": "chat", "namespace": "shop"}},
    "serviceMetadata": {"engine": "vLLM", "version": "0.9.2", "gpuType": "H100", "gpuCount": 2},
    "task": "text-to-text",
    "trafficScenarios": ["D(100,10)"],
    "numConcurrency": [4],
    "maxTimePerIteration": 7,
    "maxRequestsPerIteration": 300,
    "additionalRequestParams": {"temperature": "0.5"},
    "dataset": {
        "storageUri": "hf://acme/prompts",
        "parameters": {"prompt_column": "text"},
        "key": "data",
        **NODES,
        **UNUSED,
    },
    "outputLocation": {
        "storageUri": "s3://results@eu-west-1/runs",
        "parameters": {"region": "eu-west-1"},
        "key": "bucket",
        **NODES,
        "nodeSelector": {"store": "fast"},
        **UNUSED,
    },
    "resultFolderName": "nightly",
    "podOverride": {
        "image": "measure:2",
        "env": [{"name": "LOG", "value": "debug"}],
        "envFrom": [{"configMapRef": {"name": "settings"}}],
        "volumeMounts": [{"name": "cache", "mountPath": "/cache"}],
        "resources": {"limits": {"cpu": "8"}},
        "tolerations": [{"key": "data", "operator": "Exists"}],
        "nodeSelector": {"disk": "ssd"},
        "affinity": {"podAffinity": {}},
        "volumes": [{"name": "cache", "emptyDir": {}}],
    },
}
DIRECT: Object = {
    **{name: value for name, value in SPEC.items() if name not in ("dataset", "outputLocation", "podOverride")},
    "endpoint": {"endpoint": {"url": "http://llm.shop:8000/v1", "apiFormat": "openai", "modelName": "acme/llama"}},
    "outputLocation": {"storageUri": "pvc://results/runs"},
}
ALTERNATIVES = {
    "inferenceService.name": "talk",
    "inferenceService.namespace": "else",
    "endpoint.url": "http://other.shop:8000/v1",
    "endpoint.apiFormat": "cohere",
    "endpoint.modelName": "acme/other",
    "huggingFaceSecretReference.name": "another",
    "serviceMetadata.engine": "SGLang",
    "serviceMetadata.version": "0.5.0",
    "serviceMetadata.gpuType": "A100",
    "serviceMetadata.gpuCount": 4,
    "spec.task": "text-to-embeddings",
    "maxTimePerIteration": 9,
    "maxRequestsPerIteration": 100,
    "dataset.storageUri": "hf://acme/questions",
    "outputLocation.storageUri": "s3://results@eu-west-1/others",
}
"""Other values of required fields."""


def measured(obj: Object) -> Any:
    """Return the status of a BenchmarkJob that begins, and the pods of its runs."""
    try:
        BenchmarkJob.parse(obj, unknown="accept")
    except ResourceInvalid:
        raise InvalidObject from None
    fleet = Benchmarks()
    fleet.served("talk")
    fleet.objects["BenchmarkJob", "shop", fleet.name] = obj
    fleet.step()
    status = {
        **fleet.said,
        "conditions": [condition for condition in fleet.said["conditions"] if condition["type"] != SPEC_WARNING],
    }
    return status, fleet.here.loads, [job["spec"]["template"]["spec"] for job in fleet.jobs()]


def benchmark(spec: Object) -> Scenario:
    """A scenario of one BenchmarkJob."""
    metadata = {"name": Benchmarks.name, "namespace": "shop", "uid": "uid-bench", "generation": 1}
    metadata |= {"creationTimestamp": "2026-01-01T00:00:00Z", "annotations": {}}
    obj = {"apiVersion": "ome.io/v1beta1", "kind": "BenchmarkJob", "metadata": metadata, "spec": spec, "status": {}}
    return Scenario(obj, measured, ALTERNATIVES)


SCENARIOS = {
    "BenchmarkJob": [
        benchmark(SPEC),
        benchmark(DIRECT),
        benchmark({name: value for name, value in SPEC.items() if name != "trafficScenarios"}),
    ]
}
