"""BenchmarkJobs on the local cluster, with the real program: measured to the end, whatever is killed or changed."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import azure_server
import psutil
import pytest
import small_disk
from conftest import Services, conditions, forget, is_ready
from in_process_runs import Shift
from s3_server import BUCKET, google_account, object_store

from deployments.demo.sources import tokenizer
from modelyard.backoff import Backoff
from modelyard.benchmarks.jobs import series
from modelyard.benchmarks.jobs.lifecycle import BenchmarkRuns
from modelyard.benchmarks.jobs.world import BENCHMARK_JOBS, MEMORY, RE_RUN, TOKENIZER
from modelyard.benchmarks.measuring.outputs import open_output
from modelyard.benchmarks.measuring.results import load, of_store
from modelyard.benchmarks.records.values import Output
from modelyard.cluster import Cluster, Object
from modelyard.local.stack import LocalStack
from modelyard.models.delivery.names import CLUSTER_BASE_MODELS
from modelyard.models.storage.settings import CONFIG_MAP, KEY
from modelyard.objects.kinds import CONFIG_MAPS, DEPLOYMENTS, JOBS, PERSISTENT_VOLUME_CLAIMS, SECRETS
from modelyard.reconcile.kernel.reconciler import Registered
from modelyard.reconcile.plans.dispatch import Acting

pytestmark = pytest.mark.integration
MODEL = {
    "modelFormat": {"name": "safetensors", "version": "1.0.0"},
    "modelFramework": {"name": "transformers", "version": "4.43.0"},
    "modelArchitecture": "LlamaForCausalLM",
    "storage": {
        "storageUri": "vendor://acme/model/measured",
        "path": "/mnt/models/measured",
        "nodeSelector": {"kubernetes.io/hostname": "a100-0"},
    },
}
"""A model whose files an administrator has put onto a node."""


class Benchmarks(Services):
    """BenchmarkJobs of one namespace, and the shift that measures them."""

    kind = BENCHMARK_JOBS

    def __init__(self, cluster: Cluster, stack: LocalStack, shift: Shift, space: str) -> None:
        super().__init__(cluster, stack, shift, space)
        self._found: set[psutil.Process] = set()

    async def measure(self, name: str, endpoint: dict[str, Any], annotations: Any = None, **spec: Any) -> None:
        body = {
            "endpoint": endpoint,
            "task": "text-to-text",
            "trafficScenarios": ["D(20,10)"],
            "numConcurrency": [1],
            "maxTimePerIteration": 1,
            "maxRequestsPerIteration": 10,
            "outputLocation": {"storageUri": "pvc://results/team"},
            "resultFolderName": name,
            **spec,
        }
        metadata = {"name": name, "namespace": self.space, "annotations": annotations or {}}
        await self.cluster.create(BENCHMARK_JOBS, {"metadata": metadata, "spec": body})

    async def jobs(self, name: str) -> list[Object]:
        return [
            one
            for one in (await self.cluster.list(JOBS, self.space)).items
            if one["metadata"]["labels"]["benchmark"] == name
        ]

    @property
    def results(self) -> Path:
        """The folder of results in the claim."""
        return self.stack.paths.files / "claims" / self.space / "results" / "team"

    async def program(self, name: str) -> psutil.Process:
        """The program of the run that is under way, once it is measuring; not one that was found before."""
        reference = f"{self.space}/{name}"
        async with asyncio.timeout(120):
            while True:
                for one in psutil.process_iter():
                    with contextlib.suppress(psutil.Error, ValueError):
                        asked = json.loads(one.environ().get("MEASUREMENT", "{}")).get("reference")
                        known = asked != reference or not self._found.isdisjoint([one, *one.parents()])
                        for child in () if known else one.children():
                            self._found.add(one)
                            return child
                await asyncio.sleep(0.5)  # a look at every process's environment costs much


def state(*wanted: str) -> Callable[[Object], bool]:
    """Whether it is in one of these states."""
    return lambda obj: (obj.get("status") or {}).get("state") in wanted


def write(folder: Path) -> None:
    """Make a folder with a tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, body in tokenizer().items():
        (folder / name).write_bytes(body)


@pytest.fixture
async def benchmarks(services: Services, home: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Benchmarks]:
    """A claim for results, and a service whose model has a tokenizer."""
    monkeypatch.setattr(series, "RETRIES", Backoff(0.2))
    space, files = services.space, services.stack.paths.files
    claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    await services.cluster.create(PERSISTENT_VOLUME_CLAIMS, {"metadata": {"name": "results"}, "spec": claim}, space)
    write(files / "nodes" / "a100-0" / "mnt" / "models" / "measured")
    await services.cluster.create(CLUSTER_BASE_MODELS, {"metadata": {"name": "measured"}, "spec": MODEL})
    async with Shift([Registered(BenchmarkRuns(home), Acting("benchmark/benchmark"))], home) as shift:
        yield Benchmarks(services.cluster, services.stack, shift, space)
        for one in await services.cluster.list(BENCHMARK_JOBS, space):
            await services.cluster.delete(BENCHMARK_JOBS, one["metadata"]["name"], space)
    await forget(services.cluster, CLUSTER_BASE_MODELS, "measured")


async def test_a_service_is_measured_and_what_is_killed_or_changed_meanwhile_is_measured_again(
    services: Services, benchmarks: Benchmarks
) -> None:
    external = {"ome.io/autoscalerClass": "external"}
    await services.make("chat", {"minReplicas": 0}, model={"name": "measured"}, annotations=external)
    await services.until(is_ready, "chat")

    async def scale(replicas: int) -> None:
        patch = {"spec": {"replicas": replicas}}
        await services.cluster.merge_patch(DEPLOYMENTS, "chat-engine", patch, services.space)

    own = {"inferenceService": {"name": "chat", "namespace": services.space}}
    await benchmarks.measure("nightly", own, numConcurrency=[1, 2], maxRequestsPerIteration=100)

    def failing(*reasons: str) -> Callable[[Object], bool]:
        def holds(obj: Object) -> bool:
            kept = json.loads((obj["metadata"].get("annotations") or {}).get("modelyard.dev/benchmark", "{}"))
            return kept.get("failing", {}).get("reason") in reasons

        return holds

    await benchmarks.program("nightly")
    rolled_out = {"runner": {"name": "engine", "env": [{"name": "ROLLED", "value": "out"}]}}
    await services.patch("chat", {"spec": {"engine": rolled_out}})
    await benchmarks.until(failing("ServiceNotReady", "ServiceChanged"), "nightly")
    (await benchmarks.program("nightly")).kill()
    await benchmarks.until(failing("ProgramKilled"), "nightly")
    await benchmarks.program("nightly")
    alive: list[Object] = []

    async def one_job() -> bool:  # that of the program that was killed is known to have failed a moment later
        alive[:] = [
            one
            for one in await benchmarks.jobs("nightly")
            if not (one.get("status") or {}).get("failed") and "deletionTimestamp" not in one["metadata"]
        ]
        return len(alive) == 1

    await benchmarks.settled(one_job)
    await benchmarks.cluster.delete(JOBS, alive[0]["metadata"]["name"], services.space)
    obj = await benchmarks.until(lambda obj: "D(20,10) × 1:" in (obj["status"].get("details") or ""), "nightly")
    assert obj["status"]["state"] == "Running", "the second run is left"
    (await benchmarks.program("nightly")).kill()
    await benchmarks.until(failing("ProgramKilled"), "nightly")
    program = await benchmarks.program("nightly")
    await scale(0)
    await benchmarks.until(failing("ServiceNotReady", "ServiceScaledToZero"), "nightly")
    assert "no pod that is ready" in await benchmarks.until_reason("nightly", "Completed", "ServiceScaledToZero")
    async with asyncio.timeout(120):
        while program.is_running():
            await asyncio.sleep(0.2)

    async def cleared() -> bool:
        return not await benchmarks.jobs("nightly")

    await benchmarks.settled(cleared)
    await scale(1)
    obj = await benchmarks.until(state("Completed", "Failed"), "nightly", timeout=240)
    status = obj["status"]
    assert status["state"] == "Completed", status
    assert "D(20,10) × 2:" in status["details"]
    assert "TTFT p95" in status["details"]
    assert "service: generation 2 with " in status["details"], "it was rolled out in the middle of the first run"
    assert status["completionTime"] > status["startTime"]

    await benchmarks.settled(cleared)
    stored = load(str(benchmarks.results / "nightly"))
    assert [(run.concurrency, run.failed) for run in stored.runs] == [(1, 0), (2, 0)]
    assert all(run.requests >= 50 and run.ttft is not None for run in stored.runs)
    assert (benchmarks.results / "nightly" / "throughput-latency.png").stat().st_size > 10_000
    assert load(str(benchmarks.results / "history")).runs


async def test_a_full_claim_is_told_and_measured_into_once_there_is_room(
    services: Services, benchmarks: Benchmarks
) -> None:
    await services.make("chat", model={"name": "measured"})
    await services.until(is_ready, "chat")
    claim = benchmarks.results.parent
    claim.mkdir(parents=True, exist_ok=True)
    with small_disk.mounted(claim):
        small_disk.fill(claim)
        await benchmarks.measure("nightly", {"inferenceService": {"name": "chat", "namespace": services.space}})
        obj = await benchmarks.until(state("Completed", "Failed"), "nightly")
        assert obj["status"]["failureMessage"] == (
            "D(20,10) × 1 failed: OutputFull: output pvc://results/team, nightly/runs/D_20_10-1/measurement.json:"
            " No space left on device; make room there, or name another outputLocation"
        )
        assert conditions(obj)["Completed"] == ("False", "RunFailed", obj["status"]["failureMessage"])
        assert len(await benchmarks.jobs("nightly")) == 1, "it is not tried again before somebody has made room"

        small_disk.free(claim)
        await benchmarks.patch("nightly", {"metadata": {"annotations": {RE_RUN: "room"}}})
        obj = await benchmarks.until(state("Completed"), "nightly", timeout=240)
        assert "failureMessage" not in obj["status"]
        (run,) = load(str(benchmarks.results / "nightly")).runs
        assert (run.scenario, run.failed) == ("D(20,10)", 0)


@pytest.mark.long
async def test_a_direct_endpoint_is_measured_into_every_kind_of_bucket_and_measured_anew(
    services: Services, benchmarks: Benchmarks, home: str
) -> None:
    space, cluster = services.space, services.cluster
    named = ["--model=$(MODEL_PATH)", "--served-model-name=demo", "--port=8080"]
    await services.make("chat", {"runner": {"name": "engine", "args": named}}, model={"name": "measured"})
    await services.until(is_ready, "chat")
    write(benchmarks.results.parent / "words")
    with object_store() as s3, azure_server.serve() as azure:
        azure.put("bench", {})
        endpoint = s3.meta.endpoint_url
        allowed = {KEY: json.dumps({"endpoints": [one.partition("//")[2] for one in (endpoint, azure.address)]})}
        await cluster.create(CONFIG_MAPS, {"metadata": {"name": CONFIG_MAP}, "data": allowed}, home)
        credentials = {
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing-secret",
            "GOOGLE_SERVICE_ACCOUNT_KEY": google_account(),
            "AZURE_STORAGE_SAS_TOKEN": azure_server.shared_access("rl"),
        }
        await cluster.create(SECRETS, {"metadata": {"name": "bucket"}, "stringData": credentials}, space)
        places = {
            f"s3://{BUCKET}@us-east-1/s3": {"endpoint": endpoint},
            f"az://{azure_server.ACCOUNT}/bench/az": {"endpoint": azure.address},
            f"oci://n/ns/b/{BUCKET}/o/oci": {"endpoint": endpoint, "region": "eu-frankfurt-1"},
            f"gs://{BUCKET}/gs": {"endpoint": endpoint},
        }

        def location(uri: str) -> dict[str, Any]:
            return {"storageUri": uri, "parameters": places[uri], "key": "bucket"}

        async def ended(number: int) -> Object:
            """Once it has been measured so many times."""

            def holds(obj: Object) -> bool:
                kept = json.loads((obj["metadata"].get("annotations") or {}).get(MEMORY, "{}"))
                # What is remembered is written before what is told: a run's end is both.
                measured = kept.get("re_run", "") == str(number or "") and "ended" in kept
                return measured and state("Completed", "Failed")(obj)

            return await benchmarks.until(holds, "direct", timeout=240)

        direct = {"url": f"http://chat.{space}.svc:8080/v1", "apiFormat": "openai", "modelName": "demo"}
        await benchmarks.measure(
            "direct",
            {"endpoint": direct},
            {TOKENIZER: "/words"},
            podOverride={
                "volumes": [{"name": "words", "persistentVolumeClaim": {"claimName": "results"}}],
                "volumeMounts": [{"name": "words", "mountPath": "/words", "subPath": "words"}],
            },
            outputLocation=location(next(iter(places))),
        )
        number = 0
        for uri, parameters in places.items():
            if number:
                annotations = {"annotations": {RE_RUN: str(number)}}
                await benchmarks.patch("direct", {"metadata": annotations, "spec": {"outputLocation": location(uri)}})
            obj = await ended(number)
            if uri.startswith("az"):
                assert obj["status"]["state"] == "Failed", obj["status"]
                assert "OutputForbidden" in obj["status"]["failureMessage"]
                credentials["AZURE_STORAGE_SAS_TOKEN"] = azure_server.shared_access("rlcw")
                await cluster.merge_patch(SECRETS, "bucket", {"stringData": credentials}, space)
                number += 1
                await benchmarks.patch("direct", {"metadata": {"annotations": {RE_RUN: str(number)}}})
                obj = await ended(number)
            assert obj["status"]["state"] == "Completed", obj["status"]
            assert f"results: {uri}/direct" in obj["status"]["details"]
            store = open_output(Output(uri=uri, folder="direct", parameters=parameters), credentials)
            names = [*store.names("direct"), *store.names("history")]
            assert {"direct/runs/D_20_10-1/run.json", "direct/summary.csv", "direct/percentiles.png"} <= set(names)
            (measured,) = of_store(store, "direct/runs", uri).runs
            assert (measured.scenario, measured.failed) == ("D(20,10)", 0)
            stored = b"".join(map(store.read, names))
            for secret in credentials.values():
                assert secret.encode() not in stored
            number += 1
