"""``modelyard plan`` and a service in a real cluster: it tells what a roll-out then writes, and writes nothing."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest
import yaml
from command_line import modelyard_beside

from modelyard.cluster import Cluster
from modelyard.local.stack import LocalStack
from modelyard.models.delivery.names import CLUSTER_BASE_MODELS
from modelyard.objects.kinds import DEPLOYMENTS
from modelyard.reconcile.kernel.carry_out import carry_out
from modelyard.reconcile.kernel.fence import Fence
from modelyard.reconcile.kernel.run_view import look
from modelyard.workloads.roll_out.lifecycle import ServiceRollOut
from modelyard.workloads.roll_out.world import INFERENCE_SERVICES, RUNTIMES

pytestmark = pytest.mark.integration

CONFIG = Path(__file__).resolve().parents[3] / "config"


async def test_a_roll_out_writes_what_was_planned(
    control_plane: LocalStack, control_plane_cluster: Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))
    cluster, name = control_plane_cluster, f"small-{uuid.uuid4().hex[:6]}"
    runtime = yaml.safe_load((CONFIG / "runtimes" / "vllm-small.yaml").read_text("utf-8"))
    service, model = yaml.safe_load_all((CONFIG / "samples" / "services" / "chat.yaml").read_text("utf-8"))
    for one in (runtime, model):
        one["metadata"] = {"name": name}
        await cluster.apply(one)
    service["metadata"]["namespace"] = namespace
    service["spec"] |= {"model": {"name": name}, "runtime": {"name": name}}

    async def planned(code: int) -> list[str]:
        done = await modelyard_beside("plan", "-n", namespace, "-o", "json", "--exit-code")
        assert done.code == code, done.err
        return [line for one in json.loads(done.out)["services"] for line in one["changes"]]

    try:
        assert await planned(0) == []
        await cluster.apply(service)
        told = await planned(2)
        assert "Deployment chat-engine: new" in told
        assert not (await cluster.list(DEPLOYMENTS, namespace)).items, "nothing is written"
        plans = await look(cluster, ServiceRollOut("default"), [namespace])
        assert not (await carry_out(cluster, plans.values(), Fence())).errors
        assert await planned(0) == []
        await cluster.merge_patch(INFERENCE_SERVICES, "chat", {"spec": {"engine": {"maxReplicas": 6}}}, namespace)
        assert await planned(2) == ["HorizontalPodAutoscaler chat-engine: spec.maxReplicas: 4 → 6"]
    finally:
        await cluster.delete(RUNTIMES[1], name)
        await cluster.delete(CLUSTER_BASE_MODELS, name)
