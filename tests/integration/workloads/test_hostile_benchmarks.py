"""BenchmarkJobs of a tenant that does its worst, with a neighbour's alongside, on the real control plane."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import forked
import pytest
from fleet_fixture import eventually
from install_manifests import tenant
from killed_writers import measure

from modelyard.benchmarks.jobs.lifecycle import BenchmarkRuns
from modelyard.benchmarks.jobs.world import BENCHMARK_JOBS, LABEL, MEMORY, RE_RUN, TOKENIZER, WORK, Work
from modelyard.cluster import Cluster, ClusterSettings, NotFound, Object
from modelyard.local.stack import LocalStack
from modelyard.objects import Key
from modelyard.objects.kinds import JOBS, PERSISTENT_VOLUME_CLAIMS, SERVICES
from modelyard.onboarding.execution.service_check import service_address
from modelyard.reconcile.kernel import run_view
from modelyard.reconcile.kernel.carry_out import MOST_DEEDS
from modelyard.reconcile.kernel.fence import take
from modelyard.reconcile.kernel.reconciler import Reconciler, Registered
from modelyard.reconcile.kernel.run_view import act
from modelyard.reconcile.plans.dispatch import Acting
from modelyard.reconcile.plans.plan import FAILED, LARGEST
from modelyard.workloads.roll_out.world import INFERENCE_SERVICES

pytestmark = pytest.mark.integration

RUN = "test/run"


class Site:
    """A tenant's namespace, as the tenant and as the controller, and a neighbour's."""

    def __init__(self, cluster: Cluster, own: Cluster, space: str, other: str) -> None:
        self.cluster, self.own, self.space, self.other = cluster, own, space, other
        self.lifecycle = BenchmarkRuns(space)

    async def make(self, name: str, space: str = "", own: bool = True, **metadata: Any) -> Object:
        space = space or self.space
        annotations = {TOKENIZER: "meta/llama", **metadata.pop("annotations", {})}
        endpoint = {"url": f"http://engine.{space}.svc:8000", "apiFormat": "openai", "modelName": "demo"}
        spec = {
            "endpoint": {"endpoint": endpoint},
            "task": "text-to-text",
            "trafficScenarios": ["D(20,10)"],
            "numConcurrency": [2],
            "maxTimePerIteration": 1,
            "maxRequestsPerIteration": 10,
            "outputLocation": {"storageUri": "pvc://results/team"},
        }
        body = {"metadata": {"name": name, "annotations": annotations, **metadata}, "spec": spec}
        return await (self.own if own else self.cluster).create(BENCHMARK_JOBS, body, space)

    async def get(self, name: str, space: str = "") -> Object:
        return await self.cluster.get(BENCHMARK_JOBS, name, space or self.space)

    async def jobs(self, space: str = "") -> list[Object]:
        """Jobs that are not on their way out."""
        found = (await self.cluster.list(JOBS, space or self.space)).items
        return [one for one in found if "deletionTimestamp" not in one["metadata"]]

    async def run(self, *names: str, patience: float = 0.0) -> run_view.Acted:
        """A run of the flow for these; a name with a / is of another namespace."""
        keys = [Key(*name.split("/")) if "/" in name else Key(self.space, name) for name in names]
        for key in keys:
            await take(self.cluster, await self.get(key.name, key.namespace), BENCHMARK_JOBS, RUN, {})
        return await act(self.cluster, self.lifecycle, keys, RUN, patience)


@pytest.fixture
async def site(
    control_plane: LocalStack, control_plane_cluster: Cluster, namespace: str, other_namespace: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Site]:  # fmt: skip
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))
    monkeypatch.setattr(run_view, "LONGEST_WAIT", 0.5)
    monkeypatch.setattr(run_view, "LATE_WRITES", 10)
    claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    for space in (namespace, other_namespace):
        body = {"metadata": {"name": "results"}, "spec": claim}
        await control_plane_cluster.create(PERSISTENT_VOLUME_CLAIMS, body, space)
    path = await tenant(control_plane_cluster, namespace, control_plane.kubeconfig, tmp_path / "tenant")
    async with Cluster.connect(ClusterSettings(kubeconfig=path)) as own:
        yield Site(control_plane_cluster, own, namespace, other_namespace)


def forged(owner: Object, number: int) -> Object:
    """A Job that says that it is a run of a BenchmarkJob."""
    metadata = owner["metadata"]
    reference = {"apiVersion": "ome.io/v1beta1", "kind": "BenchmarkJob", "name": metadata["name"]}
    work = Work(series=f"s{number}", scenario="D(20,10)", concurrency=2)
    container = {"name": "c", "image": "example.invalid/x"}
    return {
        "metadata": {
            "name": f"forged-{number}",
            "labels": {LABEL: metadata["uid"]},
            "annotations": {WORK: work.text},
            "ownerReferences": [{**reference, "uid": metadata["uid"], "controller": True}],
        },
        "spec": {"parallelism": 0, "template": {"spec": {"containers": [container], "restartPolicy": "Never"}}},
    }


async def test_hundreds_of_forged_jobs_are_deleted_a_few_at_a_time(site: Site) -> None:
    """They would take the time of a tick, or of a run that is shared, from all others."""
    owner, number = await site.make("forger"), 2 * MOST_DEEDS + 20
    await asyncio.gather(*(site.own.create(JOBS, forged(owner, one), site.space) for one in range(number)))
    left = []
    async with Reconciler([Registered(site.lifecycle, Acting("benchmark/benchmark"))], [site.space]) as reconciler:
        for _ in range(3):
            plans = [plan for some in (await reconciler.look()).values() for plan in some]
            await reconciler.tell(plans, {})
            left.append(len(await site.jobs()))
    assert left[0] >= number - MOST_DEEDS
    assert left[1] >= number - 2 * MOST_DEEDS
    assert left[2] == 0


async def test_a_job_that_a_tenant_makes_too_large_to_be_read_is_not_made_for_ever(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could not be told from one that is missing, and the run would hold its place for ever."""
    monkeypatch.setattr(run_view, "IN_VAIN", 3.0)
    await site.make("large")
    await site.make("theirs", site.other, own=False)
    async with asyncio.timeout(120):
        run = asyncio.create_task(site.run("large", f"{site.other}/theirs", patience=10.0))
        (job,) = await eventually(site.jobs, "the Job is created")
        patch = {"metadata": {"annotations": {"example.com/large": "x" * (LARGEST - 1000)}}}
        await site.own.merge_patch(JOBS, job["metadata"]["name"], patch, site.space)
        acted = await run
    assert set(acted.failed) == {Key(site.space, "large")}
    assert "larger than 256 KiB" in (await site.get("large"))["metadata"]["annotations"][FAILED]
    assert len(await site.jobs(site.other)) == 1, "the neighbour's is under way"


async def test_a_tenant_that_undoes_for_ever_what_is_done_holds_no_place(site: Site) -> None:
    """At every look there is something to write: another series of runs, and its Job is gone again."""
    await site.make("endless")

    async def undo() -> None:
        for number in itertools.count():
            body = {"metadata": {"annotations": {RE_RUN: str(number)}}}
            await site.own.merge_patch(BENCHMARK_JOBS, "endless", body, site.space)
            for job in await site.jobs():
                with suppress(NotFound):
                    await site.own.delete(JOBS, job["metadata"]["name"], site.space)

    undoing = asyncio.create_task(undo())
    try:
        async with asyncio.timeout(100):
            acted = await site.run("endless", patience=1.0)
    finally:
        undoing.cancel()
    assert not acted.lost
    assert not undoing.done() or undoing.cancelled()


def edits(site: Site) -> list[Callable[[], Any]]:
    """Edits by a tenant between two steps of a run."""

    async def patch(body: Any) -> None:
        await site.own.merge_patch(BENCHMARK_JOBS, "mine", body, site.space)

    async def anew() -> None:
        await site.own.delete(BENCHMARK_JOBS, "mine", site.space)
        with suppress(NotFound):
            while True:
                await site.get("mine")
                await asyncio.sleep(0.05)
        await site.make("mine")

    return [
        lambda: patch({"spec": {"numConcurrency": [3]}}),
        lambda: patch({"metadata": {"annotations": {RE_RUN: "again"}}}),
        anew,
        lambda: patch({"metadata": {"annotations": {MEMORY: None}}}),
        lambda: patch({"metadata": {"annotations": {MEMORY: '{"began": 1, "asked": {"endpoint": {}}}'}}}),
        lambda: patch({"metadata": {"annotations": {MEMORY: "x" * 250_000}}}),
        lambda: patch({"metadata": {"annotations": {MEMORY: "{}"}}}),
        anew,
    ]


async def test_a_worker_killed_between_steps_while_the_tenant_edits_leaves_one_job_of_what_is_asked_now(
    site: Site,
) -> None:
    """SIGKILL before each write in turn; the neighbour, whose object shares the run, has one Job all along."""
    await site.make("mine")
    await site.make("theirs", site.other, own=False)
    codes = []
    for number, edit in enumerate(edits(site)):
        process = forked.start(measure, [f"{site.space}/mine", f"{site.other}/theirs"], site.space, 3 + number % 4)
        await asyncio.to_thread(process.join, 120)
        codes.append(process.exitcode)
        await edit()
    assert -9 in codes, codes
    acted = await site.run("mine", f"{site.other}/theirs")
    assert not acted.failed, acted

    async def one_each() -> bool:
        await site.run("mine", f"{site.other}/theirs")
        return len(await site.jobs()) == 1 == len(await site.jobs(site.other))

    await eventually(one_each, "one Job each")
    (job,) = await site.jobs()
    assert job["metadata"]["labels"][LABEL] == (await site.get("mine"))["metadata"]["uid"]
    (theirs,) = await site.jobs(site.other)
    assert theirs["metadata"]["labels"][LABEL] == (await site.get("theirs", site.other))["metadata"]["uid"]


async def test_the_worker_sends_the_load_of_a_check_to_no_address_that_a_tenant_forges(site: Site) -> None:
    """Statuses and Services are the tenant's to write, and the worker reaches what the tenant does not."""
    ports = [{"port": 8080}]
    specs: dict[str, dict[str, Any]] = {
        "mine": {"selector": {"app": "engine"}, "ports": ports},
        "alias": {"type": "ExternalName", "externalName": f"engine.{site.other}.svc.cluster.local"},
        "by-hand": {"ports": ports},
    }
    for name, spec in specs.items():
        await site.own.create(SERVICES, {"metadata": {"name": name}, "spec": spec}, site.space)
    forgeries = {
        f"http://engine.{site.other}.svc:8080": "no Service of namespace",
        "http://169.254.169.254/latest?": "no Service of namespace",
        f"http://mine.{site.space}.svc:8080@prefect:4200": "no Service of namespace",
        f"http://alias.{site.space}.svc:8080": "selects no pods",
        f"http://by-hand.{site.space}.svc.cluster.local:8080": "selects no pods",
        f"http://missing.{site.space}.svc:8080": "there is no Service",
        f"http://mine.{site.space}.svc.cluster.local:8080": "",
    }
    await site.own.create(INFERENCE_SERVICES, {"metadata": {"name": "chat"}, "spec": {"engine": {}}}, site.space)
    found = {}
    for url in forgeries:
        await site.own.merge_patch(INFERENCE_SERVICES, "chat", {"status": {"url": url}}, site.space, "status")
        _, why = await service_address(
            site.cluster, await site.cluster.get(INFERENCE_SERVICES, "chat", site.space), site.space
        )
        found[url] = why
    assert {
        url: why for url, why in found.items() if bool(why) != bool(forgeries[url]) or forgeries[url] not in why
    } == {}
