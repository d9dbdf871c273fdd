"""A real API server takes the generated CRDs, the samples, and no bad manifest."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import pytest
from command_line import modelyard_beside
from crds import CRD_FOLDER, served
from resource_cases import BAD, DELETE, GOOD, SAMPLES, Case, patched, sample

from modelyard.autoscaling.plans.binding_plans import policy_plan
from modelyard.autoscaling.reading.bindings import objects as policies
from modelyard.cluster import Cluster, Invalid
from modelyard.cluster.crd_install import WouldLose, crd_differences, install_crds
from modelyard.local.binaries.obtain import ensure
from modelyard.local.stack import LocalStack
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


async def accepted(cluster: Cluster, cases: Iterable[Case]) -> list[str]:
    """Return the bad manifests that the server does not refuse."""
    names = []
    for case in cases:
        with suppress(Invalid):
            await cluster.create(TYPES[case.kind], case.manifest(), dry_run=True)
            names.append(case.name)
    return names


async def test_bad_manifests_are_refused_by_the_schema(control_plane_cluster: Cluster) -> None:
    assert await accepted(control_plane_cluster, (case for case in BAD if case.server == "schema")) == []


async def test_the_other_side_of_a_bound_is_accepted(control_plane_cluster: Cluster) -> None:
    for name, changes in GOOD:
        manifest = patched(name, changes)
        await control_plane_cluster.create(TYPES[manifest["kind"]], manifest, dry_run=True)


async def test_bad_manifests_are_refused_by_the_rules(control_plane_cluster: Cluster, evaluates_cel: bool) -> None:
    if not evaluates_cel:
        pytest.skip("this API server is older than CEL rules; tests/unit/resources/test_cel_rules.py evaluates them")
    assert await accepted(control_plane_cluster, (case for case in BAD if case.server == "cel")) == []


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


NEWER = {
    "clusterbasemodel": {
        "spec.modelFormat": {"name": "safetensors", "operator": "Equal", "weight": 1},
        "spec.storage.downloadPolicy": "ReuseIfExists",
        "spec.apiCapabilities": ["OPENAI_V1_CHAT_COMPLETIONS"],
        "spec.diffusionPipeline": {"className": "QwenImagePipeline", "vae": {"library": "diffusers"}},
    },
    "servingruntime": {
        "spec.supportedModelFormats[0].modelFramework": {
            "name": "transformers",
            "operator": "GreaterThan",
            "weight": 2,
        },
        "spec.supportedModelFormats[0].acceleratorConfig": {"nvidia-h100": {"runner": {"args": ["--tp=2"]}}},
        "spec.acceleratorRequirements": {"acceleratorClasses": ["nvidia-h100"]},
    },
    "inferenceservice": {
        "spec.acceleratorSelector": {"acceleratorClass": "nvidia-h100"},
        "spec.engine.acceleratorOverride": {"policy": "Cheapest"},
        "spec.engine.minAvailable": 1,
        "spec.engine.maxUnavailable": "25%",
        "spec.kedaConfig": {"authenticationRef": {"name": "a", "kind": "TriggerAuthentication"}, "authModes": "tls"},
    },
    "modelroute": {
        "spec.parentRefs": [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "g", "port": 80}],
        "spec.rules[0].targetModels": [{"externalModelProviderName": "somebody", "weight": 1}],
    },
}


@pytest.mark.parametrize("name", NEWER)
async def test_fields_of_newer_peers_are_stored(control_plane_cluster: Cluster, name: str) -> None:
    manifest = patched(name, NEWER[name])
    stored = await control_plane_cluster.create(TYPES[manifest["kind"]], manifest, dry_run=True)
    given = {path.split("[")[0].split(".")[1] for path in NEWER[name]}
    without = {key: stored["spec"][key] for key in given}
    assert without_notation(without) == without_notation(
        {key: parse(manifest).to_manifest()["spec"][key] for key in given}
    )


async def test_a_variant_without_a_target_is_not_asked_for_the_fields_of_the_other_form(
    control_plane_cluster: Cluster, evaluates_cel: bool
) -> None:
    kind, manifest = (
        TYPES["VariantAutoscaling"],
        patched("variantautoscaling-saturation", {"spec.scaleTargetRef": DELETE}),
    )
    with pytest.raises(Invalid) as refused:
        await control_plane_cluster.create(kind, manifest, dry_run=True)
    assert "Required value" not in str(refused.value)
    assert not evaluates_cel or "give scaleTargetRef" in str(refused.value)


def another_kind(**changes: Any) -> dict[str, Any]:
    """A definition like one of ours, for a kind that no other test uses."""
    found = crd(KINDS["networking.volcano.sh", "ModelServer"])
    group = "crds.test.modelyard.dev"
    found["metadata"]["name"] = f"modelservers.{group}"
    found["spec"] = {**found["spec"], "group": group, "names": {**found["spec"]["names"], "categories": []}, **changes}
    return found


async def test_a_definition_that_knows_more_is_replaced_by_force_only(
    control_plane_cluster: Cluster, namespace: str
) -> None:
    cluster, ours, theirs = control_plane_cluster, another_kind(), another_kind()
    spec = theirs["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    spec["properties"]["later"] = {"type": "string"}
    name = theirs["metadata"]["name"]
    try:
        await install_crds(cluster, [theirs])
        kind = ResourceType(theirs["spec"]["group"], "v1alpha1", "ModelServer", "modelservers", True)
        await served(cluster, kind)
        body = {"metadata": {"name": "one"}, "spec": {**sample("modelserver")["spec"], "later": "kept"}}
        await cluster.create(kind, body, namespace)

        with pytest.raises(WouldLose, match=rf"{name}: v1alpha1\.spec\.later\n.*--force"):
            await install_crds(cluster, [ours])
        assert (await cluster.get(kind, "one", namespace))["spec"]["later"] == "kept"
        assert [str(one) for one in (await crd_differences(cluster, [ours]))[name]] == ["- v1alpha1.spec.later"]

        await install_crds(cluster, [ours], force=True)
        assert (await crd_differences(cluster, [ours]))[name] == []
        assert await install_crds(cluster, [ours]) == [name], "and again, for nothing is lost any more"
    finally:
        await cluster.delete(CRDS, name)


async def test_the_command_tells_that_ours_are_there(
    control_plane: LocalStack, control_plane_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))
    done = await modelyard_beside("crds", "--diff")
    assert done.code == 0, done.err
    assert done.out.split() == [
        word for kind in KINDS.values() for word in (f"{kind.plural}.{kind.group}", "the", "same")
    ]


async def test_kubectl_installs_and_lists(
    control_plane: LocalStack, control_plane_cluster: Cluster, namespace: str
) -> None:
    """What the documentation says of servers before CEL, and columns that show more than the first item of a list."""
    policy, variant, fresh = map(sample, ("autoscalingpolicy", "variantautoscaling-slo", "variantautoscaling-slo"))
    fresh["metadata"]["name"], fresh["spec"]["accelerator"] = "not-decided-yet", "L40S-of-the-spec"
    for one in (policy, variant, fresh):
        one["metadata"]["namespace"] = namespace
        await control_plane_cluster.create(TYPES[one["kind"]], one, namespace)
    plan = policy_plan(policies.policy({**policy, "metadata": {"generation": 1, **policy["metadata"]}}), 0.0)
    assert plan.status is not None
    for kind, name, status in (
        ("AutoscalingPolicy", policy["metadata"]["name"], {"metrics": plan.status.fields["metrics"]}),
        (
            "VariantAutoscaling",
            variant["metadata"]["name"],
            {"desiredOptimizedAlloc": {"accelerator": "H100-shown", "numReplicas": 1}},
        ),
    ):
        await control_plane_cluster.merge_patch(TYPES[kind], name, {"status": status}, namespace, "status")
    chosen = {"status": {"annotations": {"modelyard.dev/runtime": "ClusterServingRuntime/small@1"}}}
    for name, more in (("named", {"runtime": {"name": "mine"}}), ("chosen", {}), ("neither", {})):
        one = {"metadata": {"name": name}, "spec": {"model": {"name": "llama"}, "engine": {}, **more}}
        await control_plane_cluster.create(TYPES["InferenceService"], one, namespace)
        if name != "neither":
            await control_plane_cluster.merge_patch(TYPES["InferenceService"], name, chosen, namespace, "status")
    rows = (await kubectl(control_plane, "get", "isvc", "-n", namespace, "--no-headers")).splitlines()
    assert [row.split()[:3] for row in rows] == [
        ["chosen", "llama", "ClusterServingRuntime/small@1"],
        ["named", "llama", "mine"],
        ["neither", "llama", rows[2].split()[-1]],
    ]
    shown = await kubectl(control_plane, "get", "autoscalingpolicies,variantautoscalings", "-n", namespace)
    assert "vllm:kv_cache_usage_perc=0.75, vllm:num_requests_waiting=5" in shown
    assert "H100-shown" in shown
    assert "L40S-of-the-spec" in shown
    applied = await kubectl(control_plane, "apply", "--dry-run=server", "--validate=false", "-f", str(CRD_FOLDER))
    assert applied.count("(server dry run)") == len(KINDS)


async def kubectl(stack: LocalStack, *arguments: str) -> str:
    command = (str(ensure(["kubectl"], print)["kubectl"]), f"--kubeconfig={stack.kubeconfig}", *arguments)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    async with asyncio.timeout(120):
        output, _ = await process.communicate()
    assert process.returncode == 0
    return output.decode()
