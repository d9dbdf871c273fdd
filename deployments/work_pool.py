"""Work pool of Modelyard, and base job templates that let nobody change how runs are started.

A template has no placeholders and no ``env``, which Prefect would merge with a run's. Whoever may create a run chooses
its parameters, but neither the command, nor the working directory, nor the environment.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound

HEARTBEAT_SECONDS = 30
"""From heartbeat to heartbeat of a run, whoever runs the worker: the zombie automation counts on it."""

_NO_VARIABLES: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}

TEMPLATES: Mapping[str, dict[str, Any]] = {
    # Runs are children of the worker and have its environment.
    "process": {
        "job_configuration": {
            # One interpreter start instead of two. Nothing of the working directory is imported.
            "command": f"env PREFECT_FLOWS_HEARTBEAT_FREQUENCY={HEARTBEAT_SECONDS} "
            "python -P -m deployments.run_module prefect.engine",
            # Paths in parameters are those of the worker's folder, as on the command line.
            "working_dir": ".",
            "stream_output": True,
        },
        "variables": _NO_VARIABLES,
    },
}
"""Base job templates by the type of the work pool. For ``kubernetes`` see ``kubernetes_template``."""


class RunPods(NamedTuple):
    """Namespace and image of the pods that are the runs of a pool of type ``kubernetes``."""

    namespace: str
    image: str


def kubernetes_template(pods: RunPods) -> dict[str, Any]:
    """Return the base job template of a pool of type ``kubernetes``: each run is a Job with one pod.

    The worker adds its own Prefect settings, with the address of the server, and its labels. The command is left to
    Prefect: only ``prefect flow-run execute`` ends a run that is cancelled and reschedules one whose node is drained.
    """
    fields = {"POD_NAMESPACE": "metadata.namespace", "POD_NAME": "metadata.name", "POD_UID": "metadata.uid"}
    container = {
        "name": "prefect-job",
        "image": pods.image,
        "envFrom": [
            {"configMapRef": {"name": "modelyard-connections"}},
            {"secretRef": {"name": "modelyard-credentials"}},
        ],
        "env": [
            {"name": "PREFECT_FLOWS_HEARTBEAT_FREQUENCY", "value": str(HEARTBEAT_SECONDS)},
            # Named in the Lease, so that a standby can look whether the pod of a silent writer still exists.
            *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()),
            {"name": "HOME", "value": "/tmp"},
        ],
        # One run of about 100 MiB and the process that watches over it; a replay of a long trace takes more.
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    pod = {
        # Prefect asks for these two here, where Kubernetes ignores them.
        "parallelism": 1,
        "completions": 1,
        "restartPolicy": "Never",
        "serviceAccountName": "modelyard-autoscaler",
        # Long enough for a run to finish its tick and give up the Lease.
        "terminationGracePeriodSeconds": 60,
        "enableServiceLinks": False,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    }
    # Prefect sets other labels, also app.kubernetes.io/name. This one is for network policies.
    labels = {"app.kubernetes.io/component": "modelyard-run"}
    manifest = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"namespace": pods.namespace, "labels": labels, "annotations": {}},
        "spec": {
            # A retry is a decision of Prefect's, which also counts it.
            "backoffLimit": 0,
            # Long enough for the worker to report a failed pod, and for a person to read its log.
            "ttlSecondsAfterFinished": 600,
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }
    return {
        "job_configuration": {"namespace": pods.namespace, "job_manifest": manifest},
        "variables": _NO_VARIABLES,
    }


class OpenWorkPool(ValueError):
    """A work pool that cannot be closed against changes by runs; the message says what to do."""


async def create_work_pool(
    client: PrefectClient, name: str, pool_type: str | None = None, pods: RunPods | None = None
) -> str:
    """Create the pool or close an existing one with our template; return what was done. Raises ``OpenWorkPool``.

    An existing pool keeps its type. One of type ``kubernetes`` keeps its template unless ``pods`` is given.
    """
    templates = {**TEMPLATES, **({"kubernetes": kubernetes_template(pods)} if pods else {})}
    wanted = pool_type or "process"
    try:
        pool = await client.read_work_pool(name)
    except ObjectNotFound:
        if wanted not in templates:
            raise OpenWorkPool(f"A work pool of type {wanted} needs the image of its pods; give --image") from None
        with suppress(ObjectAlreadyExists):  # another bootstrap was quicker
            await client.create_work_pool(WorkPoolCreate(name=name, type=wanted, base_job_template=templates[wanted]))
            return f"created (type {wanted})"
        pool = await client.read_work_pool(name)
    if pool_type not in (None, pool.type):
        raise OpenWorkPool(
            f"The work pool {name} has type {pool.type}, not {pool_type}; name another --pool, or delete this one "
            'first (docs/real-cluster.md, "Change the type of a pool")'
        )
    if pods is not None and pool.type != "kubernetes":
        raise OpenWorkPool(f"The work pool {name} has type {pool.type}, whose runs have no image; leave out --image")
    kept = ""
    if template := templates.get(pool.type):
        await client.update_work_pool(name, WorkPoolUpdate(base_job_template=template))
    elif takes_variables(pool.base_job_template):
        raise OpenWorkPool(
            f"The base job template of the work pool {name} (type {pool.type}) takes variables, so whoever may create "
            "a run chooses what is executed; remove its placeholders, variables and `env`, or name another --pool"
        )
    elif pool.type == "kubernetes":
        kept = "; its pods keep their image and template: give --image to update both"
    return f"exists (type {pool.type}{', paused' if pool.is_paused else ''}{kept})"


def takes_variables(template: Mapping[str, Any]) -> bool:
    """Return whether a run's job variables change what is executed."""
    configuration, variables = template.get("job_configuration") or {}, template.get("variables") or {}
    closed = not variables.get("properties") and variables.get("additionalProperties") is False
    return not closed or "{{" in json.dumps(configuration) or "env" in configuration
