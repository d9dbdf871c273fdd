"""Kubernetes objects into the fleet's plain values."""

import sys

import pytest

from modelyard.autoscaling.fleet.fleet import SLOSpec
from modelyard.autoscaling.reading import observe
from modelyard.autoscaling.reading.demands import workload_of
from modelyard.objects import OwnerRef, TargetRef, WorkloadId, parse
from modelyard.objects.limits import LONGEST_MODEL_NAME


@pytest.mark.parametrize(
    ("containers", "gpus"),
    [
        ([{"resources": {"requests": {"nvidia.com/gpu": "2"}}}], (2, "nvidia.com/gpu")),
        ([{"resources": {"limits": {"amd.com/gpu": 4}}}], (4, "amd.com/gpu")),
        ([{"resources": {"requests": {"nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "1"}}}],
         (1, "nvidia.com/gpu")),
        ([{"resources": {"requests": {"nvidia.com/gpu": "1"}}}, {"resources": {"requests": {"intel.com/gpu": "1"}}}],
         (2, "nvidia.com/gpu")),
        ([{}], (0, "")),
        ([{"resources": {"requests": {"nvidia.com/gpu": "many"}}}], (0, "")),
    ],
)  # fmt: skip
def test_gpus_of_a_template(containers: list[dict[str, object]], gpus: tuple[int, str]) -> None:
    assert parse.template_gpus({"containers": containers}) == gpus


def test_a_pod_holds_the_larger_of_init_and_regular_containers() -> None:
    one = {"resources": {"requests": {"nvidia.com/gpu": "1"}}}
    four = {"resources": {"requests": {"nvidia.com/gpu": "4"}}}
    assert parse.pod_gpus({"containers": [one, one], "initContainers": [four]}) == 4
    assert parse.pod_gpus({"containers": [four, one], "initContainers": [four]}) == 5


def pod_body(**status: object) -> dict[str, object]:
    return {
        "metadata": {
            "name": "p",
            "namespace": "n",
            "uid": "u",
            "creationTimestamp": "2026-11-21T00:00:00Z",
            "ownerReferences": [
                {"kind": "Other", "name": "o", "apiVersion": "v1", "uid": "1"},
                {"kind": "ReplicaSet", "name": "rs", "apiVersion": "apps/v1", "uid": "2", "controller": True},
            ],
        },
        "spec": {"nodeName": "node"},
        "status": status,
    }


def test_a_ready_pod_says_since_when_and_a_deleted_one_is_not_ready() -> None:
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-21T00:01:00Z"}
    pod = parse.pod(pod_body(conditions=[ready], phase="Running"))
    assert pod.ready
    assert pod.ready_since == pod.created + 60
    assert pod.owner == OwnerRef("apps/v1", "ReplicaSet", "rs", "2")
    body = pod_body(conditions=[ready])
    body["metadata"]["deletionTimestamp"] = "2026-11-21T00:02:00Z"  # type: ignore[index]
    assert not parse.pod(body).ready


def test_an_unschedulable_pod_says_why() -> None:
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/5 nodes"}
    assert parse.pod(pod_body(conditions=[scheduled])).unschedulable == "0/5 nodes"


def test_a_time_without_end_is_none_and_not_remembered() -> None:
    text = "2026-11-21T00:00:00Z" + "0" * 2**20
    held = sys.getrefcount(text)
    assert parse.epoch(text) == 0.0
    assert sys.getrefcount(text) == held
    assert parse.epoch("2026-11-21T00:00:00.000000+00:00") == parse.epoch("2026-11-21T00:00:00Z") > 0


def test_a_group_workload_counts_gpus_per_group() -> None:
    pod = {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "8"}}}]}}
    body = {
        "metadata": {"name": "big", "namespace": "n"},
        "spec": {"replicas": 2, "leaderWorkerTemplate": {"size": 4, "workerTemplate": pod}},
        "status": {"replicas": 2, "readyReplicas": 1},
    }
    workload = parse.workload(body, "leaderworkerset.x-k8s.io", "LeaderWorkerSet")
    assert (workload.gpus, workload.pods_per_replica, workload.ready) == (32, 4, 1)


def test_replicas_left_out_stay_unknown() -> None:
    body = {"metadata": {"name": "w", "namespace": "n"}, "spec": {"template": {}}, "status": {}}
    assert parse.workload(body, "apps", "Deployment").spec_replicas is None


def test_single_valued_affinity_counts_as_wanted_node_label() -> None:
    terms = [
        {"matchExpressions": [{"key": "nvidia.com/gpu.product", "operator": "In", "values": ["NVIDIA-L40S-48GB"]}]}
    ]
    spec = {
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    }
    assert parse.wanted_nodes(spec) == {"nvidia.com/gpu.product": "NVIDIA-L40S-48GB"}


def test_an_hpa_made_by_keda_is_left_to_its_scaled_object() -> None:
    hpa = {
        "metadata": {"name": "keda-hpa-x", "namespace": "n"},
        "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "w"}, "maxReplicas": 5},
    }
    consumer = observe.hpa(hpa)
    assert consumer is not None
    assert (consumer.minimum, consumer.maximum) == (1, 5)
    assert consumer.target == WorkloadId("n", "apps", "Deployment", "w")
    hpa["metadata"]["ownerReferences"] = [{"kind": "ScaledObject", "name": "x", "controller": True}]  # type: ignore[index]
    assert observe.hpa(hpa) is None


@pytest.mark.parametrize(
    ("text", "cost"), [("5", 5.0), ("5.5", 5.5), ("0", 0.0), (None, 10.0), ("-1", 10.0), ("abc", 10.0), ("nan", 10.0)]
)
def test_cost_falls_back_to_the_default(text: str | None, cost: float) -> None:
    assert observe.cost_of(text) == cost


def test_whoever_names_a_workload_means_one_of_its_own_namespace() -> None:
    """The fields of these kinds have no namespace; one that was stored all the same leads nowhere else."""
    metadata = {"name": "grab", "namespace": "tenant"}
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "namespace": "victim"}
    body = {"metadata": metadata, "spec": {"scaleTargetRef": reference, "modelID": "m"}}
    mine = WorkloadId("tenant", "apps", "Deployment", "web")
    hpa = observe.hpa(body)
    assert hpa is not None
    assert {workload_of(observe.variant(body)), hpa.target, observe.scaled_object(body).target} == {mine}


def test_an_object_written_but_never_decided_has_no_desired_count() -> None:
    body = {
        "metadata": {"name": "v", "namespace": "n", "uid": "u", "resourceVersion": "1", "generation": 1},
        "spec": {"scaleTargetRef": {"kind": "Deployment", "name": "w"}, "modelID": 'a"\\b'},
        "status": {"desiredOptimizedAlloc": {"lastRunTime": None, "numReplicas": 0, "accelerator": ""}},
    }
    variant = observe.variant(body)
    assert variant.status_replicas is None
    assert variant.model_id == 'a"\\b'
    body["status"]["desiredOptimizedAlloc"]["lastRunTime"] = "2026-11-21T00:00:00Z"  # type: ignore[index]
    assert observe.variant(body).status_replicas == 0


@pytest.mark.parametrize("field", ["modelID", "accelerator", "variantID"])
def test_a_name_without_end_is_a_problem_and_not_carried_on(field: str) -> None:
    variant = observe.variant(slo_body(**{field: "org/llama-" + "h" * 2**20 + "-1"}))
    assert variant.problem is not None
    assert f"spec.{field}" in variant.problem
    assert len(variant.problem) < 1000
    assert variant.slo is not None
    assert max(map(len, (variant.model_id, variant.slo.accelerator, variant.slo.variant_id))) <= LONGEST_MODEL_NAME


def test_of_annotations_and_parameters_what_is_read_is_kept() -> None:
    parameters = {"decodeParms": {"alpha": "1", "x": "y" * 2**20}, "prefillParms": {"gamma": "9" * 2**20}}
    body = slo_body(variantProfile={"maxBatchSize": 64, "perfParms": parameters})
    read = {"modelyard.dev/actuation": "signal", "modelyard.dev/wake-query": "x" * 2**20}
    body["metadata"]["annotations"] = {**read, "example.com/notes": "x" * 2**20}  # type: ignore[index]
    variant = observe.variant(body)
    assert variant.slo is not None
    assert variant.annotations.keys() == read.keys()
    assert variant.annotations["modelyard.dev/actuation"] == "signal"
    assert (variant.slo.decode.keys(), variant.slo.prefill.keys()) == ({"alpha"}, {"gamma"})
    texts = [*variant.annotations.values(), *variant.slo.prefill.values()]
    assert max(map(len, texts)) <= observe.MAX_ANNOTATION


def test_damaged_memory_is_reported_and_never_fatal() -> None:
    body = {
        "metadata": {
            "name": "v",
            "namespace": "n",
            "uid": "u",
            "resourceVersion": "1",
            "annotations": {"modelyard.dev/autoscaling-state": '{"relax_since": "soon"}'},
        },
        "spec": {"scaleTargetRef": {"kind": "Deployment", "name": "w"}, "modelID": "m"},
    }
    variant = observe.variant(body)
    assert variant.memory.relax_since is None
    assert variant.memory_problem is not None
    assert "relax_since" in variant.memory_problem


SLO_SPEC = {
    "modelID": "llama",
    "variantID": "org/llama-H100-2",
    "accelerator": "H100",
    "acceleratorCount": 2,
    "sloClassRef": {"name": "classes", "key": "premium"},
    "variantProfile": {
        "maxBatchSize": 64,
        "perfParms": {
            "decodeParms": {"alpha": "6.958", "beta": "0.042"},
            "prefillParms": {"gamma": "5.2", "delta": "0.1"},
        },
    },
}


def slo_body(**spec: object) -> dict[str, object]:
    return {
        "apiVersion": "llmd.ai/v1alpha1",
        "kind": "VariantAutoscaling",
        "metadata": {"name": "llama", "namespace": "n", "uid": "u", "resourceVersion": "1"},
        "spec": {**SLO_SPEC, **spec},
    }


def test_the_slo_form_is_carried_as_written_and_scales_the_deployment_of_its_name() -> None:
    variant = observe.variant(slo_body())
    assert variant.form == "slo"
    assert variant.problem is None
    assert variant.target == TargetRef("apps/v1", "Deployment", "llama")
    assert variant.slo == SLOSpec(
        variant_id="org/llama-H100-2",
        accelerator="H100",
        accelerator_count=2,
        class_name="classes",
        class_key="premium",
        decode={"alpha": "6.958", "beta": "0.042"},
        prefill={"gamma": "5.2", "delta": "0.1"},
        max_batch=64,
    )


def test_an_slo_object_may_name_its_workload() -> None:
    reference = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "other"}
    assert observe.variant(slo_body(scaleTargetRef=reference)).target == TargetRef("apps/v1", "StatefulSet", "other")


@pytest.mark.parametrize(
    "broken",
    [
        {"acceleratorCount": "two"},
        {"variantProfile": {"maxBatchSize": 4}},
        {"variantProfile": {"maxBatchSize": 4, "perfParms": "none"}},
        {"variantProfile": [1]},
        {"sloClassRef": None},
    ],
)
def test_an_incomplete_slo_object_is_kept_with_what_is_wrong(broken: dict[str, object]) -> None:
    variant = observe.variant(slo_body(**broken))
    assert variant.problem is not None
    assert next(iter(broken)) in variant.problem


def test_what_the_status_says_of_the_present_is_carried() -> None:
    current = {"variantID": "v", "accelerator": "H100", "numReplicas": 2, "maxBatch": 64, "variantCost": "20.00"}
    body = {**slo_body(), "status": {"currentAlloc": current}}
    assert observe.variant(body).status["currentAlloc"] == current
    assert "currentAlloc" not in observe.variant(slo_body()).status


def test_the_saturation_form_has_no_slo_part() -> None:
    body = slo_body()
    body["spec"] = {"scaleTargetRef": {"kind": "Deployment", "name": "w"}, "modelID": "m"}
    variant = observe.variant(body)
    assert (variant.form, variant.slo) == ("saturation", None)


def test_a_command_line_without_end_is_not_carried_on() -> None:
    template = {"spec": {"containers": [{"args": ["--max-num-seqs", "64", "--chat-template", "x" * 2**20]}]}}
    body = {"metadata": {"name": "w", "namespace": "n"}, "spec": {"template": template}}
    assert parse.workload(body, "apps", "Deployment").engine_args == ()


def test_a_field_that_a_newer_peer_stored_is_ignored_and_in_a_file_wrong() -> None:
    body = slo_body(priority=3)
    assert (observe.variant(body).problem, observe.variant(body).ignored) == (
        None,
        "without effect: spec.priority: unknown field",
    )
    in_a_file = observe.variant(body, strict=True)
    assert in_a_file.problem is not None
    assert "spec.priority: unknown field" in in_a_file.problem
    assert observe.variant(slo_body(), strict=True).problem is None


ENGINE = {"command": ["vllm", "serve"], "args": ["--max-num-seqs", "64"]}
ON_GPU = {**ENGINE, "resources": {"limits": {"nvidia.com/gpu": "1"}}}


@pytest.mark.parametrize(
    ("containers", "words"),
    [
        ([ENGINE], ("vllm", "serve", "--max-num-seqs", "64")),
        ([{"command": ["sidecar"]}, ON_GPU], ("vllm", "serve", "--max-num-seqs", "64")),
        ([{"args": ["--first"]}, {"args": ["--second"]}], ("--first",)),
        ([{"args": [8000]}], ("8000",)),
        (
            [{**ON_GPU, "env": [{"name": "HF_TOKEN", "value": "s"}, {"name": "VLLM_USE_V1", "value": "0"}]}],
            ("VLLM_USE_V1=0", "vllm", "serve", "--max-num-seqs", "64"),
        ),
        ([{**ENGINE, "env": [{"name": "VLLM_USE_V1", "valueFrom": {}}]}], ("vllm", "serve", "--max-num-seqs", "64")),
        ([{}], ()),
        ([], ()),
    ],
)
def test_the_command_line_of_the_engine(containers: list[dict[str, object]], words: tuple[str, ...]) -> None:
    template = {"spec": {"containers": containers}}
    body = {"metadata": {"name": "w", "namespace": "n"}, "spec": {"template": template}}
    assert parse.workload(body, "apps", "Deployment").engine_args == words


def test_the_leader_of_a_group_has_the_command_line() -> None:
    groups = {
        "size": 2,
        "leaderTemplate": {"spec": {"containers": [ON_GPU]}},
        "workerTemplate": {"spec": {"containers": [{"command": ["worker"]}]}},
    }
    body = {"metadata": {"name": "w", "namespace": "n"}, "spec": {"leaderWorkerTemplate": groups}}
    workload = parse.workload(body, "leaderworkerset.x-k8s.io", "LeaderWorkerSet")
    assert workload.engine_args == ("vllm", "serve", "--max-num-seqs", "64")
    del groups["leaderTemplate"]
    workload = parse.workload(body, "leaderworkerset.x-k8s.io", "LeaderWorkerSet")
    assert workload.engine_args == ("worker",)
