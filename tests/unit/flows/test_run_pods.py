"""The Jobs that the Kubernetes worker makes of our base job template: whatever a run asks for, they are the same."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from install_manifests import CONTROLLER_NAMESPACE, documents
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import FlowRun
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect_kubernetes.settings import KubernetesSettings
from prefect_kubernetes.worker import KubernetesWorker, KubernetesWorkerJobConfiguration

from deployments import automations
from deployments.profile import WORKER_PROFILE, read_profile
from deployments.work_pool import RunPods, kubernetes_template, takes_variables

PODS = RunPods("here", "registry.example/modelyard:1")
FLOW_RUN = FlowRun(id=UUID(int=1), flow_id=UUID(int=2), name="deliver acme/llama")
API = "http://prefect-server.prefect.svc:4200/api"


async def job(variables: dict[str, Any]) -> dict[str, Any]:
    """The Job of a run with these job variables, as the worker creates it."""
    nowhere = PrefectClient("http://127.0.0.1:9/api")
    template = kubernetes_template(PODS)
    made = await KubernetesWorkerJobConfiguration.from_template_and_values(template, variables, client=nowhere)
    with temporary_settings({PREFECT_API_URL: API}):
        made.prepare_for_flow_run(FLOW_RUN)
    assert made.namespace == PODS.namespace
    return made.job_manifest


async def test_no_job_variable_changes_a_job() -> None:
    plain = await job({})
    asked = {
        "command": "touch /tmp/stolen",
        "image": "evil.example/image",
        "namespace": "kube-system",
        "name": "other",
        "service_account_name": "admin",
        "env": {"PYTHONPATH": "/tmp"},
        "env.LD_PRELOAD": "x",
        "labels": {"app.kubernetes.io/component": "engine"},
        "annotations": {"some": "thing"},
        "backoff_limit": 9,
        "job_manifest": {"kind": "Pod"},
        "cluster_config": {"config": {}},
    }
    assert await job(asked) == plain
    assert takes_variables(KubernetesWorker.get_default_base_job_template())
    assert not takes_variables(kubernetes_template(PODS))


async def test_a_run_is_a_job_of_one_pod_that_prefect_can_cancel() -> None:
    made = await job({})
    pod = made["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert (made["metadata"]["namespace"], container["image"]) == PODS
    assert made["metadata"]["generateName"] == "deliver-acme-llama-"
    assert made["spec"]["backoffLimit"] == 0
    assert made["spec"]["ttlSecondsAfterFinished"] > 0
    assert container["args"] == ["prefect", "flow-run", "execute"], "with prefect.engine nothing ends a cancelled run"
    variables = {one["name"]: one.get("value") for one in container["env"]}
    assert variables["PREFECT__FLOW_RUN_ID"] == str(FLOW_RUN.id)
    assert variables["PREFECT_API_URL"] == API
    assert made["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/component"] == "modelyard-run"


async def test_jobs_refer_to_the_secret_in_place_of_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in read_profile(WORKER_PROFILE).items():
        monkeypatch.setenv(name, value)
    settings = KubernetesSettings().worker
    (container,) = (await job({}))["spec"]["template"]["spec"]["containers"]
    secrets = [source["secretRef"]["name"] for source in container["envFrom"] if "secretRef" in source]
    assert [settings.api_auth_string_secret_name] == secrets
    assert settings.api_auth_string_secret_key == "PREFECT_API_AUTH_STRING"


async def test_zombies_are_pods_that_miss_ten_heartbeats() -> None:
    (zombies,) = automations.load()
    (container,) = (await job({}))["spec"]["template"]["spec"]["containers"]
    beat = next(one["value"] for one in container["env"] if one["name"] == "PREFECT_FLOWS_HEARTBEAT_FREQUENCY")
    trigger: Any = zombies.trigger
    assert trigger.within.total_seconds() == 10 * int(beat)
    assert read_profile(WORKER_PROFILE)["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"] == beat, "the worker's own comes first"


@pytest.mark.parametrize("field", ["envFrom", "securityContext", "volumeMounts"])
async def test_a_run_has_the_connections_and_the_limits_of_the_worker(field: str) -> None:
    (worker,) = documents("worker.yaml")
    theirs, ours = worker["spec"]["template"]["spec"], (await job({}))["spec"]["template"]["spec"]
    assert ours["containers"][0][field] == theirs["containers"][0][field]
    for name in ("serviceAccountName", "terminationGracePeriodSeconds", "securityContext", "volumes"):
        assert ours[name] == theirs[name]
    assert worker["metadata"]["namespace"] == CONTROLLER_NAMESPACE
