"""What `modelyard local up` prints as the next thing to type: engines that scale with their load."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

import pytest
import yaml
from fleet_fixture import quick, run_tick

from modelyard.autoscaling.fleet.kinds import VARIANTS
from modelyard.autoscaling.live.controller import Controller
from modelyard.cli.local import SAMPLE
from modelyard.cluster import Cluster
from modelyard.local.stack import LocalStack
from modelyard.objects.kinds import DEPLOYMENTS, NAMESPACES

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[3]


async def test_the_sample_scales_under_the_load_of_the_printed_command(
    local_stack: LocalStack, local_cluster: Cluster, local_namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(local_stack.kubeconfig))
    # As it is printed, but for the namespace, which is the test's own, and engines that are ready sooner.
    text = SAMPLE.read_text(encoding="utf-8").replace("namespace: chat", f"namespace: {local_namespace}")
    for manifest in yaml.safe_load_all(text.replace("--startup-delay=20", "--startup-delay=1")):
        if manifest["kind"] != NAMESPACES.kind:
            await local_cluster.apply(manifest)
    where = ("--name", local_stack.name, "--dir", str(local_stack.paths.root), "-n", local_namespace)
    load = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "modelyard.cli.main", "local", "load", *where, "--rate", "8", "--minutes", "0.7"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with Controller(quick(local_stack.prometheus_url, local_namespace)) as loop, asyncio.timeout(120):
            while (await local_cluster.get(DEPLOYMENTS, "llama", local_namespace))["spec"]["replicas"] < 2:
                await run_tick(loop)
                await asyncio.sleep(0.5)
        status = (await local_cluster.get(VARIANTS, "llama", local_namespace))["status"]
        assert status["currentAlloc"] == {"numReplicas": 1}
        assert status["desiredOptimizedAlloc"]["accelerator"] == "L40S"
        told, _ = await asyncio.wait_for(load.communicate(), 120)
        assert load.returncode == 0, told.decode()
        answered, sent = re.findall(r"^(\d+) of (\d+) requests answered; TTFT p50", told.decode(), re.MULTILINE)[0]
        assert int(answered) == int(sent) > 100
    finally:
        if load.returncode is None:
            load.kill()
