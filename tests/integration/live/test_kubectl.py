"""What a user sees with kubectl after a tick, and the command that installs the kinds."""

from __future__ import annotations

import asyncio
import re

import pytest
from command_line import modelyard_beside
from fleet_fixture import ServedModel, quick, run_tick
from prometheus_server import PrometheusServer

from modelyard.autoscaling.live.controller import Controller
from modelyard.cluster import Cluster
from modelyard.local.binaries.obtain import ensure
from modelyard.local.stack import LocalStack
from modelyard.objects.kinds import CRDS
from modelyard.resources import KINDS

pytestmark = pytest.mark.integration


async def output(*command: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode == 0, err.decode()
    return out.decode()


async def kubectl(stack: LocalStack, *arguments: str) -> str:
    return await output(str(ensure(["kubectl"], print)["kubectl"]), f"--kubeconfig={stack.kubeconfig}", *arguments)


def table(text: str) -> list[list[str]]:
    """Cells; kubectl separates columns by at least two spaces."""
    return [re.split(r"\s{2,}", line.strip()) for line in text.splitlines()]


async def test_get_shows_the_state_and_describe_the_reasons(
    served: ServedModel, prometheus_server: PrometheusServer, control_plane: LocalStack
) -> None:
    await served.deploy("llama", 2)
    await served.vary("llama", model="org/llama")
    await served.vary("lost", model="org/lost")
    served.models["llama"] = "org/llama"
    served.load("llama", model="org/llama", kv=0.76, waiting=1)  # type: ignore[arg-type]
    await served.reported()
    async with Controller(quick(prometheus_server.url, served.namespace)) as loop:
        await run_tick(loop)
    assert await served.replicas("llama") == 3

    header, *rows = table(await kubectl(control_plane, "get", "va", "-n", served.namespace))
    both_forms = ["TARGET", "MODEL", "VARIANTID", "ACCELERATOR", "CURRENTREPLICAS", "OPTIMIZED", "METRICSREADY"]
    assert header == ["NAME", *both_forms, "AGE"]
    assert rows[0][:7] == ["llama", "llama", "org/llama", "H100", "2", "3", "True"], "there were 2, and 3 are wanted"
    assert re.fullmatch(r"\d+[smh].*", rows[0][7])
    wide = await kubectl(control_plane, "get", "va", "-n", served.namespace, "-o", "wide")
    assert re.search(r"H100 +2 +3 +True +.*spare KV", wide), "and why"
    full_name = await kubectl(control_plane, "get", "variantautoscalings.llmd.ai", "-n", served.namespace, "-o", "name")
    assert full_name.split() == ["variantautoscaling.llmd.ai/llama", "variantautoscaling.llmd.ai/lost"]
    lost = await kubectl(control_plane, "get", "va", "lost", "-n", served.namespace, "--no-headers")
    assert lost.split()[:4] == ["lost", "lost", "org/lost", "False"], "never decided: no number at all"

    told = await kubectl(control_plane, "describe", "va", "llama", "-n", served.namespace)
    status = (await served.variant("llama"))["status"]
    conditions, _, events = told.partition("\nEvents:")
    for condition in status["conditions"]:
        assert f"Type: {condition['type']}" in re.sub(r" +", " ", conditions)
        assert condition["reason"] in conditions
        assert condition["message"] in re.sub(r"\s+", " ", conditions)
    assert {"TargetResolved", "MetricsAvailable", "OptimizationReady"} <= {c["type"] for c in status["conditions"]}
    (scaled,) = [cells for cells in table(events) if "ScaledUp" in cells]
    assert scaled[0] == "Normal"
    assert scaled[3] == "modelyard"
    assert re.match(rf"Deployment {served.namespace}/llama 2 → 3: ", scaled[4])
    assert "spare KV" in scaled[4]


async def test_the_short_names_and_the_group_are_discoverable(control_plane: LocalStack) -> None:
    listed = await kubectl(control_plane, "api-resources", "--api-group=llmd.ai", "--no-headers")
    assert listed.split()[:3] == ["variantautoscalings", "va", "llmd.ai/v1alpha1"]
    explained = await kubectl(control_plane, "explain", "va.spec.variantCost")
    assert "DESCRIPTION" in explained


async def test_installing_the_kinds_again_changes_nothing(
    served: ServedModel, control_plane_cluster: Cluster, control_plane: LocalStack
) -> None:
    await served.vary("llama")

    async def install() -> dict[str, str]:
        told = await modelyard_beside("crds", "--install")
        names = [line.removeprefix("customresourcedefinition/").split()[0] for line in told.out.splitlines()]
        assert sorted(names) == sorted(f"{cls.plural}.{cls.group}" for cls in KINDS.values())
        assert len(names) == 13
        return {name: (await control_plane_cluster.get(CRDS, name))["metadata"]["resourceVersion"] for name in names}

    first = await install()
    assert await install() == first
    assert (await served.variant("llama"))["spec"]["modelID"] == "llama"
