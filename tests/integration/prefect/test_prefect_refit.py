"""A profile on a real API server: given to a variant and kept by a command, shown, and fitted anew by the flow
``refit_profiles`` when live latencies have left it."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import modelyard_beside

from flows.benchmark import refit_profiles
from modelyard.autoscaling.fleet.kinds import VARIANTS
from modelyard.autoscaling.fleet.provenance import PROVENANCE
from modelyard.autoscaling.sizing.experiment import smallest
from modelyard.autoscaling.sizing.fit import Point
from modelyard.benchmarks.jobs.world import BENCHMARK_JOBS, MEMORY, RE_RUN, Memory
from modelyard.benchmarks.measuring.profiles import LIBRARY, ProfileKey, library_patch, read_library
from modelyard.benchmarks.measuring.results import RunRecord, as_csv
from modelyard.cluster import Cluster
from modelyard.engine.config import EngineConfig
from modelyard.local.stack import LocalStack
from modelyard.objects import Key
from modelyard.objects.kinds import CONFIG_MAPS
from modelyard.profiles.fitting.closed_loop import serve
from modelyard.reconcile.plans.memory import render_memory

pytestmark = pytest.mark.integration

PROFILE: dict[str, Any] = {
    "maxBatchSize": 32,
    "perfParms": {
        "decodeParms": {"alpha": "100", "beta": "1"},
        "prefillParms": {"gamma": "1", "delta": "1"},
    },
}
SPEC: dict[str, Any] = {
    "modelID": "llama",
    "variantID": "llama-H100-2",
    "accelerator": "H100",
    "acceleratorCount": 2,
    "sloClassRef": {"name": "classes", "key": "premium"},
    "variantProfile": PROFILE,
}
JOB: dict[str, Any] = {
    "endpoint": {"endpoint": {"url": "http://engine:8000", "apiFormat": "openai", "modelName": "llama"}},
    "task": "text-to-text",
    "trafficScenarios": ["D(128,64)"],
    "numConcurrency": [1],
    "maxTimePerIteration": 1,
    "maxRequestsPerIteration": 10,
    "outputLocation": {"storageUri": "pvc://results/speed"},
}


def records(alpha: float) -> list[RunRecord]:
    """What an engine with that alpha measures."""
    engine = EngineConfig(alpha=alpha, beta=0.1, gamma=30, delta=0.02, max_num_seqs=32)
    found = []
    for run in smallest(32, (64, 512)):
        served = serve(engine, Point(*run, 64, 1, 1))
        means = (sum(one[part] for one in served) / len(served) / 1000 for part in (0, 1))
        parts = ("mean", "p50", "p90", "p95", "p99")
        ttft, itl = (dict.fromkeys(parts, mean) for mean in means)
        latency = dict.fromkeys(parts, ttft["mean"] + 63 * itl["mean"])
        seconds = len(served) * latency["mean"] / run.concurrency
        about = {"scenario": f"D({run.prompt_tokens},64)", "concurrency": run.concurrency, "seconds": seconds}
        about |= {"started": "2026-01-01T00:00:00Z", "requests": len(served), "failed": 0}
        about |= {"requests_rate": len(served) / seconds, "output_rate": 64 * len(served) / seconds}
        about |= {"prompt_tokens": run.prompt_tokens, "output_tokens": 64}
        found.append(RunRecord.model_validate({"run": about | {"ttft": ttft, "itl": itl, "latency": latency}}))
    return found


async def given(cluster: Cluster, space: str) -> dict[str, Any]:
    """The profile a variant has, and of which engine it says that it is."""
    there = await cluster.get(VARIANTS, "chat", space)
    told = json.loads(there["metadata"]["annotations"][PROVENANCE])
    return {"profile": there["spec"]["variantProfile"], "source": told["source"], "alpha": told["engine"]["alpha"]}


async def test_a_profile_is_given_kept_and_fitted_anew(
    local_stack: LocalStack,
    local_cluster: Cluster,
    local_namespace: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    space, cluster = local_namespace, local_cluster
    monkeypatch.setenv("KUBECONFIG", str(local_stack.kubeconfig))
    await cluster.create(VARIANTS, {"metadata": {"name": "chat", "namespace": space}, "spec": SPEC})
    await cluster.create(BENCHMARK_JOBS, {"metadata": {"name": "speed", "namespace": space}, "spec": JOB})
    results = tmp_path / "summary.csv"
    results.write_text(as_csv(records(9.0)), encoding="utf-8")

    kept = ("--variant", f"{space}/chat", "--keep", "-n", space)
    done = await modelyard_beside("profile", "fit", results, *kept)
    assert done.code == 0, done.err
    assert "Kept as llama-H100-2" in done.out
    first = await given(cluster, space)
    assert first["alpha"] == pytest.approx(9, rel=0.05)
    assert float(first["profile"]["perfParms"]["decodeParms"]["alpha"]) == pytest.approx(9, rel=0.05)
    shown = await modelyard_beside("profile", "show", f"{space}/chat")
    assert str(results) in shown.out.replace("\n", "")
    assert "llama-H100-2" in (await modelyard_beside("profile", "show", "-n", space)).out
    again = await modelyard_beside("profile", "show", "llama-H100-2", "-n", space, "-o", "yaml")
    assert yaml.safe_load(again.out)["spec"]["variantProfile"] == first["profile"]
    missing = await modelyard_beside("profile", "show", "other", "-n", space)
    assert missing.code == 2
    assert "there are: llama-H100-2" in missing.err

    looked = {"namespaces": [space], "controller_namespace": space, "wait": False, "return_state": True}
    assert (await refit_profiles(**looked)).message == "all profiles hold"
    since = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    drift = {"type": "ProfileDrift", "status": "True", "reason": "LatenciesDiffer", "message": "m"}
    status = {"status": {"conditions": [{**drift, "lastTransitionTime": since}]}}
    await cluster.merge_patch(VARIANTS, "chat", status, space, "status")
    state = await refit_profiles(**looked)
    assert state.name == "Failed"
    assert "fitted to no BenchmarkJob of its namespace" in (state.message or "")

    told = json.dumps({"source": f"{space}/speed"})
    await cluster.merge_patch(VARIANTS, "chat", {"metadata": {"annotations": {PROVENANCE: told}}}, space)
    before = {"metadata": {"annotations": {PROVENANCE: told}}, "spec": {"variantProfile": first["profile"]}}
    runtimes = [ProfileKey("llama", "H100", 2, runtime) for runtime in ("", "other")]
    for mine, body in zip(runtimes, (before, {**before, "metadata": {}}), strict=True):
        await cluster.merge_patch(CONFIG_MAPS, LIBRARY, library_patch(mine, body), space)
    state = await refit_profiles(**looked)
    assert (state.name, state.message) == ("Completed", f"{space}/chat: {space}/speed is being measured again")
    asked = (await cluster.get(BENCHMARK_JOBS, "speed", space))["metadata"]["annotations"][RE_RUN]
    assert asked.startswith("drift-")
    assert "is being measured again" in ((await refit_profiles(**looked)).message or "")

    now = time.time()
    memory = Memory(re_run=asked, began=now, ended=now + 1, runs=tuple(one.run for one in records(18.0)))
    body = {"metadata": {"annotations": {MEMORY: render_memory(memory)}}}
    await cluster.merge_patch(BENCHMARK_JOBS, "speed", body, space)
    state = await refit_profiles(**looked)
    assert state.name == "Completed", state.message
    assert f"updated llama-H100-2 in ConfigMap {space}/{LIBRARY}" in (state.message or "")
    library, _ = read_library(Key(space, LIBRARY), (await cluster.get(CONFIG_MAPS, LIBRARY, space))["data"])
    assert library["llama-H100-2"].provenance["engine"]["alpha"] == pytest.approx(18, rel=0.05)
    assert library["llama-H100-2-other"].provenance == {}, "what is of another origin stays"
    second = await given(cluster, space)
    assert second["source"] == f"{space}/speed"
    assert second["alpha"] == pytest.approx(18, rel=0.05)
