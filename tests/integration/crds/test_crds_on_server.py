"""A real API server takes the generated CRDs, the samples, and no bad manifest."""

from __future__ import annotations

from contextlib import suppress

import pytest
from resource_cases import BAD, SAMPLES, Case, patched, sample

from modelyard.cluster import Cluster, Invalid
from modelyard.objects.kinds import CRDS, ResourceType
from modelyard.resources import KINDS, Resource, parse
from modelyard.resources.crd import crd

pytestmark = pytest.mark.integration

TYPES = {
    kind.kind: ResourceType(kind.group, kind.version, kind.kind, kind.plural, kind.namespaced)
    for kind in KINDS.values()
}
NAMES = sorted(path.stem for path in SAMPLES.glob("*.yaml"))


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.kind)
async def test_crd_is_established_and_structural(control_plane_cluster: Cluster, kind: type[Resource]) -> None:
    stored = await control_plane_cluster.get(CRDS, f"{kind.plural}.{kind.group}")
    conditions = {c["type"]: c for c in stored["status"]["conditions"]}
    assert conditions["Established"]["status"] == "True"
    assert conditions["NamesAccepted"]["status"] == "True"
    assert conditions.get("NonStructuralSchema", {}).get("status", "False") == "False", conditions
    version = stored["spec"]["versions"][0]
    wanted = crd(kind)["spec"]["versions"][0]
    assert version["additionalPrinterColumns"] == wanted["additionalPrinterColumns"]
    assert version["subresources"] == wanted["subresources"]


@pytest.mark.parametrize("name", NAMES)
async def test_sample_is_accepted_and_comes_back_with_the_models_defaults(
    control_plane_cluster: Cluster, name: str
) -> None:
    manifest = sample(name)
    kind = TYPES[manifest["kind"]]
    stored = await control_plane_cluster.create(kind, manifest, dry_run=True)
    expected = parse(manifest).to_manifest()["spec"]
    assert parse(stored).to_manifest()["spec"] == expected
    assert without_notation(stored["spec"]) == without_notation(expected), "defaults of server and model differ"


def without_notation(value: object) -> object:
    """The same with quantities and durations in one notation: the server keeps theirs as written."""
    if isinstance(value, dict):
        return {key: without_notation(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_notation(item) for item in value]
    return {"0.75": "750m", 5: "5", "1m": "1m0s", "2m": "2m0s", "5m": "5m0s", "60s": "1m0s"}.get(value, value)  # type: ignore[call-overload]


@pytest.mark.parametrize("case", [c for c in BAD if c.server == "schema"], ids=lambda case: case.name)
async def test_bad_manifest_is_refused(control_plane_cluster: Cluster, case: Case) -> None:
    with pytest.raises(Invalid):
        await control_plane_cluster.create(TYPES[case.kind], case.manifest(), dry_run=True)


async def test_bad_manifests_are_refused_by_the_rules(control_plane_cluster: Cluster, evaluates_cel: bool) -> None:
    if not evaluates_cel:
        pytest.skip("this API server is older than CEL rules; tests/unit/resources/test_cel_rules.py evaluates them")
    accepted = []
    for case in (c for c in BAD if c.server == "cel"):
        with suppress(Invalid):
            await control_plane_cluster.create(TYPES[case.kind], case.manifest(), dry_run=True)
            accepted.append(case.name)
    assert accepted == []


async def test_an_unknown_field_is_not_stored_outside_pod_fragments(
    control_plane_cluster: Cluster, namespace: str
) -> None:
    kind = TYPES["InferenceService"]
    manifest = patched("inferenceservice", {"spec.engine.runner.later": {"x": 1}, "spec.engine.volumes[0].later": "y"})
    manifest["metadata"]["namespace"] = namespace
    stored = await control_plane_cluster.create(kind, manifest, namespace)
    assert stored["spec"]["engine"]["runner"]["later"] == {"x": 1}
    assert stored["spec"]["engine"]["volumes"][0]["later"] == "y"


async def test_status_of_a_variant(control_plane_cluster: Cluster, namespace: str) -> None:
    kind = TYPES["VariantAutoscaling"]
    manifest = sample("variantautoscaling-saturation")
    manifest["metadata"]["namespace"] = namespace
    name = manifest["metadata"]["name"]
    await control_plane_cluster.create(kind, manifest, namespace)
    alloc = {"accelerator": "A100", "numReplicas": 0, "lastRunTime": "2026-01-09T22:00:00Z"}
    stored = await control_plane_cluster.merge_patch(
        kind, name, {"status": {"desiredOptimizedAlloc": alloc}}, namespace, "status"
    )
    assert stored["status"] == {"desiredOptimizedAlloc": alloc}
    assert stored["metadata"]["generation"] == 1, "status is a subresource"
    for bad in ({"numReplicas": -1}, {"accelerator": "A"}, {"numReplicas": None}):
        with pytest.raises(Invalid):
            await control_plane_cluster.merge_patch(
                kind, name, {"status": {"desiredOptimizedAlloc": bad}}, namespace, "status"
            )


async def test_two_writers_share_the_conditions_of_a_variant(control_plane_cluster: Cluster, namespace: str) -> None:
    """No schema of this kind has an int-or-string, which would make the list atomic for apply on old servers."""
    kind = TYPES["VariantAutoscaling"]
    manifest = sample("variantautoscaling-saturation")
    manifest["metadata"]["namespace"] = namespace
    name = manifest["metadata"]["name"]
    await control_plane_cluster.create(kind, manifest, namespace)
    for manager, aspect in (("one", "MetricsAvailable"), ("two", "OptimizationReady")):
        condition = {
            "type": aspect,
            "status": "True",
            "reason": "Test",
            "message": "For a test.",
            "lastTransitionTime": "2026-01-09T22:00:00Z",
        }
        body = {
            "apiVersion": kind.api_version,
            "kind": kind.kind,
            "metadata": {"name": name, "namespace": namespace},
            "status": {"conditions": [condition]},
        }
        await control_plane_cluster.apply(body, field_manager=manager, subresource="status")
    stored = await control_plane_cluster.get(kind, name, namespace)
    assert {c["type"] for c in stored["status"]["conditions"]} == {"MetricsAvailable", "OptimizationReady"}
