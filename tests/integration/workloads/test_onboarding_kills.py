"""Onboardings on the real control plane whose writer is killed after each write, or has only its own rights.

What carries out the objects is played: a model, services and benchmarks are told to be where they should be.
"""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import forked
import pytest
from conftest import FORMAT, RUNTIME, Fleets
from install_manifests import AUTOSCALER, documents, in_force, install_roles, kubeconfig_of
from killed_writers import onboard
from needed_rights import Right, noted
from onboarded import MEASURED, FollowedOnboarding, noisy, request

from modelyard.benchmarks.jobs.world import BENCHMARK_JOBS, MEMORY, Memory
from modelyard.cluster import Cluster, ClusterSettings
from modelyard.local.stack import LocalStack
from modelyard.models.delivery.names import BASE_MODELS
from modelyard.objects.kinds import CONFIG_MAPS, PERSISTENT_VOLUME_CLAIMS, PODS
from modelyard.onboarding.execution.start import OnboardRefused, take_over
from modelyard.onboarding.planning import objects
from modelyard.onboarding.request import OnboardRequest
from modelyard.reconcile.kernel.run_view import act
from modelyard.reconcile.plans.memory import render_memory
from modelyard.workloads.rendering import names
from modelyard.workloads.roll_out.world import INFERENCE_SERVICES, RUNTIMES, VARIANTS

pytestmark = pytest.mark.integration

MADE = (CONFIG_MAPS, BASE_MODELS, INFERENCE_SERVICES, BENCHMARK_JOBS, VARIANTS)
BEGIN = 3
"""Writes of a process that goes on: the ConfigMap that is there already, its claim, and the first of its own."""


async def site(fleets: Fleets) -> str:
    """A namespace with the runtimes of both candidates, and the claim for results."""
    space = await fleets.space()
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    await fleets.cluster.create(PERSISTENT_VOLUME_CLAIMS, {"metadata": {"name": "results"}, "spec": claim}, space)
    for name in MEASURED:
        metadata = {"name": name, "namespace": space}
        await fleets.cluster.create(RUNTIMES[0], {"metadata": metadata, "spec": RUNTIME})
    return space


async def proceed(cluster: Cluster, space: str) -> bool:
    """Everything that was made becomes what it is to be; whether there was something."""
    told: dict[Any, dict[str, Any]] = {
        BASE_MODELS: {"state": "Ready"},
        INFERENCE_SERVICES: {"conditions": [{"type": "Ready", "status": "True", "reason": "Told"}]},
        BENCHMARK_JOBS: {"state": "Completed"},
    }
    moved = False
    for kind, status in told.items():
        for one in await cluster.list(kind, space):
            metadata = one["metadata"]
            if one.get("status") or metadata.get("deletionTimestamp"):
                continue
            moved, name = True, metadata["name"]
            if kind is BASE_MODELS:
                await cluster.merge_patch(kind, name, {"spec": FORMAT}, space)
            if kind is INFERENCE_SERVICES and "probe" not in name:
                engine = {"name": "engine", "image": "example.invalid/engine:1", "args": ["--served-model-name=it"]}
                labels = {names.SERVICE: name, names.COMPONENT: names.ENGINE}
                pod = {"metadata": {"name": f"{name}-engine", "labels": labels}, "spec": {"containers": [engine]}}
                await cluster.create(PODS, pod, space)
            if kind is BENCHMARK_JOBS:
                runtime = one["spec"]["endpoint"]["inferenceService"]["name"].rpartition("-")[2]
                memory = render_memory(Memory(runs=tuple(noisy(runtime, one["spec"]["numConcurrency"]))))
                await cluster.merge_patch(kind, name, {"metadata": {"annotations": {MEMORY: memory}}}, space)
            await cluster.merge_patch(kind, name, {"status": status}, space, subresource="status")
    return moved


async def there(cluster: Cluster, space: str) -> dict[str, Any]:
    """What is in a namespace, by kind and name, without what differs from one time to the next."""
    found = {}
    for kind in MADE:
        for one in await cluster.list(kind, space, label_selector=objects.LABEL):
            metadata = one["metadata"]
            if "deletionTimestamp" not in metadata:
                kept = {"labels": metadata["labels"], "owned": [o["name"] for o in metadata.get("ownerReferences", ())]}
                found[f"{kind.kind} {metadata['name']}"] = kept | {"spec": one.get("spec"), "data": one.get("data")}
    for one in found.values():
        # The one thing that names the namespace.
        one["data"] = {k: v.replace(space, "SPACE") for k, v in (one["data"] or {}).items()}
        endpoint = ((one["spec"] or {}).get("endpoint") or {}).get("inferenceService", {})
        endpoint.pop("namespace", None)
    return found


async def carried_out(
    cluster: Cluster, asked: OnboardRequest, *runs: str, told_by: Cluster | None = None
) -> FollowedOnboarding:
    """From the beginning to the end, by a process that nobody kills; of these runs the last has it.

    ``told_by``: whose rights do what other parts of a cluster do.
    """
    on = FollowedOnboarding(cluster, asked)
    for run in (given := runs or ("test/one",)):
        await take_over(cluster, asked, run)
    for _ in range(300):  # what is removed goes when the server comes to it
        acted = await act(cluster, on.lifecycle, [on.key], given[-1], patience=0)
        assert not acted.failed, acted
        assert on.here is not None
        if not await proceed(told_by or cluster, asked.namespace) and on.here.steps.done:
            return on
        await asyncio.sleep(0.1)
    raise AssertionError(f"not at its end: {on.here}")


async def test_whoever_is_killed_after_any_write_is_followed_to_the_same_end(fleets: Fleets) -> None:
    cluster = fleets.cluster
    whole = await carried_out(cluster, request(namespace=await site(fleets)))
    assert whole.here is not None
    assert whole.here.steps.verdict is not None
    assert whole.here.steps.done, whole.here.steps

    asked = request(namespace=await site(fleets))
    uids: dict[str, set[str]] = {}
    codes: Counter[int] = Counter()
    end = await there(cluster, whole.asked.namespace)
    assert "BenchmarkJob chat-probe-slow-at-3" in end, "levels were added"
    for at in (1, 2, *[BEGIN + 1] * 60):
        process = forked.start(onboard, asked.model_dump_json(), at)
        await asyncio.to_thread(process.join, 120)
        assert process.exitcode is not None
        codes[process.exitcode] += 1
        for kind in MADE:
            for one in await cluster.list(kind, asked.namespace, label_selector=objects.LABEL):
                uids.setdefault(f"{kind.kind} {one['metadata']['name']}", set()).add(one["metadata"]["uid"])
        moved = await proceed(cluster, asked.namespace)
        if not moved and process.exitcode == BEGIN - 1 and await there(cluster, asked.namespace) == end:
            break
    assert codes[-signal.SIGKILL] >= 6, codes
    assert not codes.keys() - {-signal.SIGKILL, BEGIN - 1, BEGIN}, codes
    assert await there(cluster, asked.namespace) == end
    assert not {name: all_ for name, all_ in uids.items() if len(all_) > 1}, "nothing was made or measured twice"


async def test_a_second_onboarding_of_the_name_is_refused_and_one_in_vain_says_what_could_be(fleets: Fleets) -> None:
    cluster, space = fleets.cluster, await site(fleets)
    on = await carried_out(cluster, request(namespace=space, itl=1))
    assert on.here is not None
    assert "no candidate reaches the target; the nearest is TTFT 500 ms" in on.here.steps.problem
    left = await there(cluster, space)
    assert "InferenceService chat" not in left, "nothing is written where nothing can be chosen"
    assert not [name for name in left if name.startswith("InferenceService chat-probe")], (
        "probes are removed all the same"
    )
    with pytest.raises(OnboardRefused, match="belongs to another onboarding of this name"):
        await take_over(cluster, request(namespace=space), "test/two")
    await cluster.create(CONFIG_MAPS, {"metadata": {"name": "mine-onboarding"}, "data": {"mine": "all"}}, space)
    with pytest.raises(OnboardRefused, match="was made by no onboarding"):
        await take_over(cluster, request(namespace=space, name="mine"), "test/two")

    poor = await carried_out(cluster, request(namespace=space, name="poor", budget=0.5))
    assert poor.here is not None
    assert "the budget of 0.5 an hour is too small: 1 of slow" in poor.here.steps.problem
    unfit = request(namespace=space, name="unfit", candidates=(), prices={"B200": 1})
    none = await carried_out(cluster, unfit)
    assert none.here is not None
    assert "no runtime serves the model on an accelerator that has a price" in none.here.steps.problem
    assert "fast: it asks for accelerator of any kind, which has no price" in none.here.steps.problem


async def test_onboarding_needs_exactly_the_rights_of_the_manifest(
    fleets: Fleets, control_plane: LocalStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, space = fleets.cluster, await site(fleets)
    await install_roles(cluster)
    for document in documents("rbac-onboarding.yaml"):
        await cluster.apply(document)
    account = await kubeconfig_of(cluster, AUTOSCALER, control_plane.kubeconfig, tmp_path / "account")
    await in_force(account, BENCHMARK_JOBS, space)
    notes = noted(monkeypatch)
    notes.account = str(account)
    async with Cluster.connect(ClusterSettings(kubeconfig=account)) as own:
        await carried_out(own, request(namespace=space), "test/one", "test/two", told_by=cluster)
    assert notes.forbidden == []
    allowed: set[Right] = {
        (group, one, verb)
        for document in documents("rbac-onboarding.yaml")
        for rule in document.get("rules", ())
        for group in rule["apiGroups"]
        for one in rule["resources"]
        for verb in rule["verbs"]
    }
    assert notes.needed <= allowed
    # What the check under load reads, and what this server does not have: an admission plug-in, a kind of newer peers.
    elsewhere = {("", "configmaps/finalizers", "update")}
    elsewhere |= {("ome.io", "acceleratorclasses", verb) for verb in ("list", "watch")}
    assert allowed - notes.needed == {("apps", "deployments", "get"), ("", "services", "get"), *elsewhere}
