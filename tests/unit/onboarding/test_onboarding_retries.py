"""What another start of an onboarding tries again: objects of its steps, and nothing else that has its label."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from onboarded import request

from modelyard.benchmarks.jobs.world import BENCHMARK_JOBS
from modelyard.cluster import Cluster
from modelyard.models.delivery.names import BASE_MODELS
from modelyard.objects import ResourceType
from modelyard.objects.kinds import CONFIG_MAPS
from modelyard.onboarding.execution.start import retry_failed
from modelyard.onboarding.planning import objects


class Stored:
    """The objects of a namespace; it records which are patched."""

    def __init__(self, *stored: Mapping[str, Any]) -> None:
        self.stored = [{**obj, "metadata": {**obj["metadata"], "uid": "x"}} for obj in stored]
        self.patched: list[str] = []

    async def get(self, kind: ResourceType, name: str, namespace: str) -> Mapping[str, Any]:
        (only,) = (obj for obj in self.stored if (obj["kind"], obj["metadata"]["name"]) == (kind.kind, name))
        return only

    async def list(self, kind: ResourceType, namespace: str, labels: str) -> list[dict[str, Any]]:
        name, _, value = labels.partition("=")
        some = [obj for obj in self.stored if obj["kind"] == kind.kind]
        return [obj for obj in some if obj["metadata"]["labels"].get(name) == value]

    async def merge_patch(self, kind: ResourceType, name: str, body: object, namespace: str) -> None:
        self.patched.append(f"{kind.kind} {name}")


async def test_only_objects_of_the_onboarding_s_steps_are_tried_again() -> None:
    asked = request()
    failed = {"status": {"state": "Failed"}}
    model = objects.base_model(asked) | failed
    job = objects.benchmark(asked, asked.candidates[0], [1]) | failed
    labelled = [{**job, "metadata": {**job["metadata"], "name": f"labelled-{number}"}} for number in range(3000)]
    taken = objects.benchmark(asked, asked.candidates[1], [1]) | failed
    taken["metadata"]["annotations"][objects.DIGEST] = "other"
    service = objects.probe(asked, asked.candidates[0])
    cluster = Stored(objects.order(asked), model, service, job, taken, *labelled)
    made = await retry_failed(cast(Cluster, cluster), asked, "run-2")
    names = [(kind.kind, obj["metadata"]["name"]) for kind, obj in made]
    probe = service["metadata"]["name"]
    assert names == [("BaseModel", "chat"), ("InferenceService", probe), ("BenchmarkJob", probe)]
    assert cluster.patched == ["BaseModel chat", f"BenchmarkJob {probe}"]
    assert {CONFIG_MAPS.kind, BASE_MODELS.kind, BENCHMARK_JOBS.kind} <= {obj["kind"] for obj in cluster.stored}
