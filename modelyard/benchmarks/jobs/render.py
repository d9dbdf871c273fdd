"""The Kubernetes Job of one run: a pod of our image that finds what to measure, and its credentials, in its variables.

It needs no accelerator and no rights: no token of a service account, no capability, no selector of GPU nodes. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from modelyard.benchmarks.jobs.settings import BenchmarkSettings
from modelyard.benchmarks.jobs.storage import (
    COLUMNS,
    DATASET_CREDENTIALS,
    DATASET_FOLDER,
    RESULTS_FOLDER,
    DatasetPlace,
    ResultPlace,
)
from modelyard.benchmarks.jobs.targets import BenchmarkTarget, Load
from modelyard.benchmarks.jobs.world import LABEL, TARGET, WORK, Work, digest
from modelyard.benchmarks.records import MEASUREMENT, MeasuredServer, Measurement
from modelyard.models.delivery import CONFINED, CONFINED_POD
from modelyard.objects import Key, Namespace
from modelyard.reconcile.plans import Subject
from modelyard.resources.ome import BenchmarkJobSpec
from modelyard.workloads.rendering import (
    Body,
    PodDraft,
    check,
    checked,
    fitting,
    label_value,
    merge,
    rights,
    with_env,
    with_files,
    with_nodes,
)

REPORT: Final = "/dev/termination-log"
CONTAINER: Final = "genai-bench"
BEYOND: Final = 1200
"""Seconds that a run may take beside its measuring: starting, storing what was measured, ending."""
_CONTAINER_FIELDS = ("image", "env", "envFrom", "volumeMounts", "resources")
_POD_FIELDS = ("volumes", "affinity", "nodeSelector", "tolerations")
_HUB_TOKENS = ("HF_TOKEN", "HUGGINGFACE_API_KEY")


def measurement(
    spec: BenchmarkJobSpec, key: Key, load: Load, target: BenchmarkTarget, results: ResultPlace, data: DatasetPlace
) -> Measurement:
    """What the process of a run is asked for."""
    about, parameters = spec.service_metadata, spec.dataset.parameters if spec.dataset is not None else None
    server = {name: getattr(about, name, None) for name in MeasuredServer.model_fields}
    return Measurement(
        reference=str(key),
        service=target.service,
        backend=target.backend,
        url=target.url,
        public=target.public,
        model=target.model,
        tokenizer=target.tokenizer,
        task=spec.task,
        scenario=load.scenario,
        concurrency=load.concurrency,
        minutes=spec.max_time_per_iteration,
        requests=spec.max_requests_per_iteration,
        request_parameters=dict(spec.additional_request_params or {}),
        dataset=data.address or None,
        access=data.access,
        columns={name: value for name, value in (parameters or {}).items() if name in COLUMNS},
        server=MeasuredServer.model_validate(server),
        output=results.output,
    )


def job(
    subject: Subject,
    spec: BenchmarkJobSpec,
    work: Work,
    asked: Measurement,
    target: BenchmarkTarget,
    results: ResultPlace,
    data: DatasetPlace,
    settings: BenchmarkSettings,
    namespace: Namespace,
) -> Body:
    """The Job of a run. Raises ``Refusal`` for a ``podOverride`` that cannot be, or asks for what it may not have."""
    key = subject.key
    stem = re.sub(r"[^a-z0-9]+", "-", f"{key.name}-{work.scenario}-{work.concurrency}".lower())[:52].strip("-")
    name = fitting(f"{stem}-{digest(subject.uid, work.series, work.scenario, work.concurrency, work.attempt)[:9]}")
    labels = {"benchmark": label_value(key.name), LABEL: subject.uid, TARGET: target.key}
    annotations = {"logging-forward": "true"}
    pod = _overridden(spec, settings, namespace)
    pod = pod.with_container(lambda container: _filled(container, spec, asked, results, data))
    pod = pod.with_container(lambda container: _with_storage_limit(container, settings.pod_config.storage_limit))
    if target.files is not None:
        pod = with_files(pod, target.files)
    if results.claim:
        source: Body = {"persistentVolumeClaim": {"claimName": results.claim}}
        mount: Body = {"mountPath": RESULTS_FOLDER, "subPath": results.folder}
        pod = _mounted(pod, "benchmark-output-storage", source, mount)
    if data.claim is not None:
        source = {"persistentVolumeClaim": {"claimName": data.claim.claim}}
        mount = {"mountPath": DATASET_FOLDER, "subPath": data.claim.path.strip("/"), "readOnly": True}
        pod = _mounted(pod, "benchmark-dataset", source, mount)
    if data.secret:
        source = {"secret": {"secretName": data.secret}}
        mount = {"mountPath": DATASET_CREDENTIALS, "readOnly": True}
        pod = _mounted(pod, "benchmark-dataset-credentials", source, mount)
    for storage, field in ((spec.dataset, "spec.dataset"), (spec.output_location, "spec.outputLocation")):
        if storage is not None:
            pod = with_nodes(pod, storage.node_selector, storage.node_affinity, field)
    template = {"metadata": {"labels": labels, "annotations": annotations}, "spec": pod.spec}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": key.namespace,
            "labels": labels,
            "annotations": {**annotations, WORK: work.text},
        },
        "spec": {"backoffLimit": 0, "template": template},
    }


def _overridden(spec: BenchmarkJobSpec, settings: BenchmarkSettings, namespace: Namespace) -> PodDraft:
    config = settings.pod_config
    container: Body = {
        "name": CONTAINER,
        "image": config.image,
        "env": [{"name": "HOME", "value": "/tmp"}, {"name": "ENABLE_UI", "value": "false"}],
        "volumeMounts": [{"name": "scratch", "mountPath": "/tmp"}],
        "resources": {
            "requests": {"cpu": config.cpu_request, "memory": config.memory_request},
            "limits": {"cpu": config.cpu_limit, "memory": config.memory_limit},
        },
    }
    pod: Body = {"volumes": [{"name": "scratch", "emptyDir": {}}]}
    override = spec.pod_override
    changes: Mapping[str, Any] = override.model_dump(by_alias=True, exclude_none=True) if override is not None else {}
    path = "spec.podOverride"
    container = merge(container, {n: v for n, v in changes.items() if n in _CONTAINER_FIELDS}, path)
    pod = merge(pod, {n: v for n, v in changes.items() if n in _POD_FIELDS}, path)
    found = checked({**pod, "containers": [container]}, path)
    check(path, rights(found), frozenset(), namespace, ())
    return PodDraft(
        {
            **found,
            **CONFINED_POD,
            "activeDeadlineSeconds": 60 * spec.max_time_per_iteration + BEYOND,
        },
        CONTAINER,
    )


def _filled(
    container: Body, spec: BenchmarkJobSpec, asked: Measurement, results: ResultPlace, data: DatasetPlace
) -> Body:
    # Kubernetes would fill in $(NAME): what was checked is what runs.
    given: dict[str, Any] = {MEASUREMENT: asked.model_dump_json(exclude_defaults=True).replace("$", "$$")}
    given |= {name: value.replace("$", "$$") for name, value in {**results.variables, **data.variables}.items()}
    secrets: dict[str, Any] = {"HF_ENDPOINT": results.hub} if results.hub else {}
    if spec.hugging_face_secret_reference is not None:
        source = {"secretKeyRef": {"name": spec.hugging_face_secret_reference.name, "key": "HUGGINGFACE_API_KEY"}}
        secrets |= dict.fromkeys(_HUB_TOKENS, source)
    container = with_env(with_env(container, secrets), given, replace=True)
    sources = list(container.get("envFrom") or ())
    if results.secret:
        sources.append({"secretRef": {"name": results.secret}})
    return {
        **container,
        **({"envFrom": sources} if sources else {}),
        "command": ["modelyard", "benchmarks", "measure"],
        "args": ["--report", REPORT],
        "terminationMessagePath": REPORT,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": dict(CONFINED),
    }


def _with_storage_limit(container: Body, limit: str) -> Body:
    """The container with the most that its pod may take of a node's disk, whatever an override says."""
    resources = container.get("resources") or {}
    # Without a request the limit would be one, and keep the pod from nodes with less.
    amounts = {"limits": limit, "requests": "0"}
    found = {name: {**(resources.get(name) or {}), "ephemeral-storage": value} for name, value in amounts.items()}
    return {**container, "resources": {**resources, **found}}


def _mounted(pod: PodDraft, volume: str, source: Body, mount: Body) -> PodDraft:
    volumes = [other for other in pod.spec.get("volumes") or () if other["name"] != volume]

    def mounted(container: Body) -> Body:
        others = container.get("volumeMounts") or ()
        mounts = [other for other in others if other.get("mountPath") != mount["mountPath"]]
        return {**container, "volumeMounts": [*mounts, {"name": volume, **mount}]}

    spec = {**pod.spec, "volumes": [*volumes, {"name": volume, **source}]}
    return PodDraft(spec, pod.main).with_container(mounted)
