"""Samples of ``config/samples`` on the local cluster: applied as docs/samples.md says, each reaches its state."""

from __future__ import annotations

import asyncio
import json
import re
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import modelyard_beside
from fleet_fixture import quick, run_tick
from in_process_runs import Shift

from deployments.demo.sources import Sources, allowed
from flows.reconcile import lifecycles
from modelyard.autoscaling.live.controller import Controller
from modelyard.cluster import Cluster, NotFound, Object
from modelyard.local.stack import LocalStack
from modelyard.objects import ResourceType
from modelyard.objects.kinds import CONFIG_MAPS, NAMESPACES
from modelyard.resources import KINDS

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[3]
SAMPLES = ROOT / "config" / "samples"
PAGE = (ROOT / "docs" / "samples.md").read_text("utf-8")
HOME = "workload-variant-autoscaler-system"
SECONDS = 300
"""Patience for one sample; all of them together take less than two minutes on an idle machine."""
ROW = re.compile(r"^\| `([\w/-]+\.yaml)` \| .* \| (.*) \|$", re.MULTILINE)
EXPECTED = {name: re.findall(r"`(\w+=\w+|chosen|rejected)`", state) for name, state in ROW.findall(PAGE)}


APPLIED = [*SAMPLES.glob("*.yaml"), *SAMPLES.glob("services/*.yaml")]
"""Samples with a state of their own on the page."""
INPUTS = sorted(
    path
    for folder in ("autoscaling", "local", "plan")
    for path in (SAMPLES / folder).rglob("*.yaml")
    if path.name != "metrics.yaml"
)
"""Manifests that commands and other tests use."""


def test_every_sample_has_a_documented_state_and_every_folder_a_row() -> None:
    assert {str(path.relative_to(SAMPLES)) for path in APPLIED} == EXPECTED.keys()
    assert all(EXPECTED.values())
    folders = set(re.findall(r"^\| `(\w+)/` \|", PAGE, re.MULTILINE))
    assert {path.name for path in SAMPLES.iterdir() if path.is_dir()} == folders


@dataclass(frozen=True)
class Applied:
    """The samples of one session; ``runtimes`` is the namespace of the one with a real engine."""

    cluster: Cluster
    space: str
    home: str
    runtimes: str
    port: str

    def written(self, path: Path) -> list[Object]:
        """Return the manifests of a file, changed as the page says, in the namespaces of this test."""
        text = path.read_text("utf-8").replace(HOME, self.home).replace("127.0.0.1:9000", f"127.0.0.1:{self.port}")
        text = re.sub(r"image: vllm/.*", "image: modelyard.dev/simulated-engine:latest", text)
        text = re.sub(r"( *)model: {name: llama-70b}", r"\g<0>\n\1runtime: {name: simulated-prefill-decode}", text)
        space = self.runtimes if path.name == "servingruntime.yaml" else self.space
        text = re.sub(r"namespace: (default|shop)\b", f"namespace: {space}", text)
        text = text.replace(".default.svc", f".{space}.svc")
        return [manifest for manifest in yaml.safe_load_all(text) if manifest["kind"] != "Namespace"]

    async def read(self, name: str) -> Object:
        """Return the object of a sample, the first of its file, as it is in the cluster."""
        manifest = self.written(SAMPLES / name)[0]
        metadata = manifest["metadata"]
        return await self.cluster.get(kind_of(manifest), metadata["name"], metadata.get("namespace"))


def kind_of(manifest: Object) -> ResourceType:
    group = manifest["apiVersion"].partition("/")[0]
    return ResourceType.of_resource(KINDS[group, manifest["kind"]])


@pytest.fixture(scope="module")
async def applied(local_stack: LocalStack, local_cluster: Cluster) -> AsyncIterator[Applied]:
    """Everything is applied at once, and the flows run until the last sample has been looked at."""
    names = [f"samples-{part}-{uuid.uuid4().hex[:6]}" for part in ("of", "home", "runtimes")]
    for name in names:
        await local_cluster.create(NAMESPACES, {"metadata": {"name": name}})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(local_stack.kubeconfig))
        patch.setenv("PROMETHEUS_BASE_URL", local_stack.prometheus_url)
        async with Sources() as sources:
            samples = Applied(local_cluster, *names, sources.url.rpartition(":")[2])
            settings = allowed(sources)
            settings["metadata"]["namespace"] = samples.home
            await local_cluster.create(CONFIG_MAPS, settings)
            files = [
                SAMPLES / "local" / "prerequisites.yaml",
                ROOT / "config" / "runtimes" / "local" / "simulated.yaml",
                ROOT / "config" / "runtimes" / "local" / "simulated-prefill-decode.yaml",
            ]
            manifests = [manifest for path in [*files, *APPLIED] for manifest in samples.written(path)]
            for manifest in manifests:
                await local_cluster.apply(manifest)
            async with (
                Shift(lifecycles(samples.home), samples.home),
                Controller(quick(local_stack.prometheus_url, samples.space, controller_namespace=samples.home)) as loop,
            ):
                scaling = asyncio.create_task(ticks(loop))
                try:
                    yield samples
                finally:
                    scaling.cancel()
                    await asyncio.gather(scaling, return_exceptions=True)
                    await clear(local_cluster, manifests)
    for name in names:
        await local_cluster.delete(NAMESPACES, name)


async def ticks(loop: Controller) -> None:
    """Scale until cancelled."""
    while True:
        await run_tick(loop)
        await asyncio.sleep(2)


async def clear(cluster: Cluster, manifests: list[Object]) -> None:
    """Delete the custom resources and wait until nothing of them is left, on the disks of nodes either."""
    custom = [
        manifest for manifest in manifests if (manifest["apiVersion"].partition("/")[0], manifest["kind"]) in KINDS
    ]
    names = [
        (kind_of(manifest), manifest["metadata"]["name"], manifest["metadata"].get("namespace")) for manifest in custom
    ]
    for name in names:
        with suppress(NotFound):
            await cluster.delete(*name)
    async with asyncio.timeout(SECONDS):
        for name in names:
            with suppress(NotFound):
                while await cluster.get(*name):
                    await asyncio.sleep(0.3)


def state_of(obj: Object, names: list[str]) -> list[str]:
    """Return these fields and conditions of a status as ``NAME=VALUE``, in the words of the page."""
    status: dict[str, Any] = obj.get("status") or {}
    conditions = {one["type"]: one["reason"] for one in status.get("conditions") or ()}
    return [f"{name}={conditions.get(name, status.get(name))}" for name in names]


@pytest.mark.parametrize("sample", sorted(EXPECTED))
async def test_a_sample_reaches_its_documented_state(applied: Applied, sample: str) -> None:
    expected = EXPECTED[sample]
    if expected[-1] in ("chosen", "rejected"):
        await explained(applied, sample, expected[-1])
        return
    names, begun = [pair.partition("=")[0] for pair in expected], time.monotonic()
    while state_of(obj := await applied.read(sample), names) != expected:
        assert time.monotonic() < begun + SECONDS, f"{sample}: the status is {json.dumps(obj.get('status'), indent=1)}"
        await asyncio.sleep(0.3)


async def explained(applied: Applied, sample: str, verdict: str) -> None:
    (manifest,) = applied.written(SAMPLES / sample)
    done = await modelyard_beside("runtimes", "explain", "llama-3-1-8b", "-n", applied.runtimes, "-o", "json")
    verdicts = {runtime["name"]: runtime["verdict"] for runtime in json.loads(done.out)["runtimes"]}
    assert verdicts[manifest["metadata"]["name"]] == verdict, done.out


@pytest.mark.parametrize("path", INPUTS, ids=lambda path: str(path.relative_to(SAMPLES)))
async def test_the_server_takes_the_manifests_of_every_folder(applied: Applied, path: Path) -> None:
    for manifest in yaml.safe_load_all(path.read_text("utf-8")):
        if "namespace" in manifest["metadata"]:
            manifest["metadata"]["namespace"] = applied.runtimes
        stored = await applied.cluster.apply(manifest, dry_run=True)
        assert stored["metadata"]["name"] == manifest["metadata"]["name"]
