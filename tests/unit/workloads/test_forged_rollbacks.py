"""Finding: a tenant that may write ControllerRevisions and statuses gets no rights by what is kept for a rollback."""

from __future__ import annotations

import copy
import json
from typing import Any

import kthena_models
import pytest
import service_cases
import service_world
from hypothesis import given, strategies as st
from kthena_models import a_backend, a_model, a_worker
from service_world import ENGINE, NOW, Fleet

from modelyard.objects import Namespace
from modelyard.objects.kinds import CONFIG_MAPS, CONTROLLER_REVISIONS, DEPLOYMENTS, JOBS
from modelyard.reconcile.plans.plan import Plan, Subject
from modelyard.workloads.kthena.lifecycle import ModelRollOut
from modelyard.workloads.rendering.child_rules import child_rules, pod_rights
from modelyard.workloads.rendering.values import Rendered, Right
from modelyard.workloads.roll_out import returning
from modelyard.workloads.roll_out.recorded_inputs import CONFIG_MAP, MAX_RECORDS
from modelyard.workloads.roll_out.returning import MAX_DELETED, USUAL
from modelyard.workloads.roll_out.world import child_kinds

LATEST = "LatestDeploymentReady"
PRIVILEGED = {**ENGINE, "securityContext": {"privileged": True}}
SPEC = {"model": {"name": "llama"}, "runtime": {"name": "small"}, "engine": {}}
OWN = {"runner": {"name": "ome-container", "image": "engine:2"}}


def serving() -> Fleet:
    """A service that answers, and the controller's namespace."""
    fleet = service_world.serving()
    fleet.put("Namespace", "home")
    fleet.objects["ControllerRevision", "shop", fleet.status()["annotations"]["modelyard.dev/good"]]["data"] = {}
    fleet.settle()
    return fleet


def engine(fleet: Fleet) -> dict[str, Any]:
    """Spec of the engine's pods."""
    found: dict[str, Any] = fleet.objects["Deployment", "shop", "chat-engine"]["spec"]["template"]["spec"]
    return found


def failing(fleet: Fleet) -> None:
    """An update whose pods do not become ready."""
    fleet.service(engine=OWN)
    fleet.settle()
    fleet.objects["Deployment", "shop", "chat-engine"]["status"] |= {"updatedReplicas": 1, "replicas": 2}


def forged(inputs: dict[str, Any], **more: Any) -> Fleet:
    """A service whose update fails, and a revision to return to that its tenant wrote."""
    fleet = serving()
    failing(fleet)
    fleet.forge_revision(inputs, **more)
    fleet.settle(now=NOW + USUAL)
    return fleet


RUNTIMES: dict[str, dict[str, Any]] = {
    "privileged container": {"runner": PRIVILEGED},
    "host network": {"hostNetwork": True, "runner": ENGINE},
    "host path": {"volumes": [{"name": "host", "hostPath": {"path": "/"}}], "runner": ENGINE},
    "account": {"serviceAccountName": "admin", "runner": ENGINE},
    "sidecar": {"containers": [{**PRIVILEGED, "name": "side"}], "runner": ENGINE},
    "init container": {"initContainers": [{**PRIVILEGED, "name": "first"}], "runner": ENGINE},
    "host port": {"runner": {**ENGINE, "ports": [{"containerPort": 8080, "hostPort": 8080}]}},
    "rdma": {"annotations": {"rdma.ome.io/auto-inject": "true"}, "runner": ENGINE},
}


@pytest.mark.parametrize("kind", ["ClusterServingRuntime", "ServingRuntime"])
@pytest.mark.parametrize("name", RUNTIMES)
def test_a_forged_revision_gives_no_right(name: str, kind: str) -> None:
    runtime = {"kind": kind, "name": "small", "spec": {"supportedModelFormats": [], "engineConfig": RUNTIMES[name]}}
    fleet = forged({"spec": SPEC, "runtime": runtime})
    assert not pod_rights(fleet.objects["Deployment", "shop", "chat-engine"]) - frozenset(
        right
        for right in fleet.standing().result.rights  # type: ignore[union-attr]
    )
    assert engine(fleet)["containers"][0]["image"] == "engine:2", "nothing is returned to"
    status, reason, message = fleet.condition(LATEST)
    assert (status, reason) == ("False", "RollingOut")
    assert "cannot be rolled back" in message
    assert "is not for everybody to give" in message


@pytest.mark.parametrize("name", RUNTIMES)
def test_a_forged_revision_gives_no_right_by_the_service_itself(name: str) -> None:
    fleet = forged({"spec": {**SPEC, "engine": RUNTIMES[name]}})
    assert engine(fleet)["containers"][0]["image"] == "engine:2"
    assert "cannot be rolled back" in fleet.condition(LATEST)[2]


@pytest.mark.parametrize("uri", ["hostpath:///etc", "hostpath:///mnt/models/../../etc", "hostpath:///mnt/models/zoo"])
def test_a_forged_revision_of_a_model_mounts_no_folder_of_others(uri: str) -> None:
    fleet = Fleet(served=frozenset(), lifecycle=ModelRollOut)
    fleet.put("Model", "chat", "shop", spec=a_model()["spec"], status={})
    fleet.settle()
    fleet.up("chat-main")
    fleet.settle()
    fleet.put(
        "Model", "chat", "shop", spec=a_model(a_backend(workers=[a_worker(image="b:2")]))["spec"], status=fleet.status()
    )
    fleet.settle()
    fleet.objects["Deployment", "shop", "chat-main"]["status"] |= {"updatedReplicas": 1, "replicas": 2}
    backend = a_backend(cacheURI=uri, env=[{"name": "A", "value": "b"}])
    fleet.forge_revision({"spec": a_model(backend)["spec"]})
    fleet.settle(now=NOW + USUAL)
    standing = fleet.standing()
    assert standing.unreturnable.startswith("spec.backends[0].cacheURI (backend main): in what served before")
    volumes = fleet.objects["Deployment", "shop", "chat-main"]["spec"]["template"]["spec"].get("volumes") or []
    assert not [volume for volume in volumes if "hostPath" in volume]


def test_objects_that_earlier_releases_kept_are_not_applied() -> None:
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x", "namespace": "kube-system"}}
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "x"}, "rules": []}
    fleet = serving()
    failing(fleet)
    before = fleet.names()
    name = fleet.forge_revision({})
    kept = json.dumps({"children": [[deployment, "engine", [], None], [role, "", [], None]], "notes": [], "modes": {}})
    fleet.objects["ControllerRevision", "shop", name]["data"] = {"rendered": kept}
    fleet.settle(now=NOW + USUAL)
    assert fleet.names() == before
    assert ("ControllerRevision", "shop", name) not in fleet.objects or not fleet.look().apply  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "inputs",
    [
        {},
        {"spec": "text"},
        {"spec": {"engine": {"minReplicas": "many"}}},
        {"spec": SPEC, "runtime": "small"},
        {"spec": SPEC, "runtime": {"kind": 1, "name": [], "spec": {}}},
        {"spec": SPEC, "runtime": {"kind": "ClusterServingRuntime", "name": "small", "spec": {"engineConfig": 7}}},
        {"spec": {**SPEC, "model": {"name": "gone"}}},
        {"spec": SPEC, "labels": [], "annotations": {"a": {}}, "children": [["Role"]]},
        {"spec": {**SPEC, "engine": {"config": {"a": [[[[[[[[1]]]]]]]]}}}},
    ],
)
def test_a_forged_revision_stops_nothing(inputs: dict[str, Any]) -> None:
    fleet = forged(inputs)
    assert fleet.condition(LATEST)[0] == "False"
    fleet.service(engine={"runner": {"name": "ome-container", "image": "engine:3"}})
    fleet.settle(now=NOW + 2 * USUAL)
    fleet.up("chat-engine")
    fleet.settle(now=NOW + 2 * USUAL)
    assert fleet.condition(LATEST)[1] == "RolledOut"


@given(
    st.recursive(
        st.none() | st.booleans() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(
                    ["spec", "runtime", "engine", "runner", "name", "kind", "labels", "annotations", "containers"]
                ),
                inner,
            )
        ),
    )
)
def test_whatever_is_kept_is_planned(value: Any) -> None:
    fleet = serving()
    failing(fleet)
    fleet.forge_revision(value if isinstance(value, dict) else {"spec": value})
    plan = fleet.look(now=NOW + USUAL)
    assert plan is not None
    assert all(not plan.rules.refusal(manifest) for manifest in plan.apply)


def test_a_forged_text_beyond_the_limit_is_not_read() -> None:
    fleet = serving()
    failing(fleet)
    name = fleet.forge_revision({"spec": {**SPEC, "engine": {"config": {"a": "x" * returning.MAX_TEXT}}}})
    stored = fleet.stores()[CONTROLLER_REVISIONS].get(("shop", name))
    assert stored is not None
    assert stored.text == ""


def test_a_revision_of_a_neighbour_is_not_taken_for_ones_own() -> None:
    fleet = serving()
    failing(fleet)
    name = fleet.forge_revision({"spec": SPEC})
    stored = fleet.objects["ControllerRevision", "shop", name]["metadata"]["ownerReferences"][0]
    stored["uid"] = "another-service"
    fleet.settle(now=NOW + USUAL)
    assert engine(fleet)["containers"][0]["image"] == "engine:2"
    assert ("ControllerRevision", "shop", name) in fleet.objects, "nor deleted"


def test_hundreds_of_forged_revisions_are_deleted_a_few_at_a_time() -> None:
    fleet = serving()
    for number in range(300):
        fleet.forge_revision({"spec": SPEC, "labels": {"n": str(number)}})
    plan = fleet.look()
    assert plan is not None
    assert len(plan.delete) == MAX_DELETED


def test_forged_revisions_with_finalizers_of_the_tenant_leave_nothing_to_do() -> None:
    """They never go, and neither keep others from being deleted nor have runs started without end."""
    fleet = serving()
    names = [fleet.forge_revision({"spec": SPEC, "labels": {"n": str(number)}}) for number in range(MAX_DELETED + 5)]
    for name in sorted(names)[:MAX_DELETED]:
        metadata = fleet.objects["ControllerRevision", "shop", name]["metadata"]
        metadata |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["example.com/never"]}
    plan = fleet.look()
    assert plan is not None
    assert {child.key.name for child in plan.delete} <= set(sorted(names)[MAX_DELETED:])
    assert len(plan.delete) >= 4
    for name in sorted(names)[MAX_DELETED:]:
        del fleet.objects["ControllerRevision", "shop", name]
    fleet.settle()
    plan = fleet.look()
    assert plan is None or not plan.acts


def changed(fleet: Fleet, runner: dict[str, Any]) -> None:
    """Another spec of the runtime of the cluster."""
    fleet.runtime(engineConfig={"runner": runner})


def restarted(runner: dict[str, Any], after: dict[str, Any] | None, **allowed: Any) -> Fleet:
    """A service on a runtime with ``runner``, whose update fails once the runtime has ``after`` (``None``: is gone)."""
    fleet = Fleet()
    fleet.put("Namespace", "home")
    fleet.model()
    changed(fleet, runner)
    fleet.service(runtime={"name": "small"}, **allowed)
    fleet.settle()
    fleet.up("chat-engine")
    fleet.settle()
    fleet.service(runtime={"name": "other"}, engine={"minReplicas": 1, "labels": {"a": "b"}})
    fleet.runtime("other", engineConfig={"runner": {**ENGINE, "image": "engine:9"}})
    fleet.settle()
    fleet.objects["Deployment", "shop", "chat-engine"]["status"] |= {"updatedReplicas": 1, "replicas": 2}
    if after is None:
        del fleet.objects["ClusterServingRuntime", "", "small"]
    else:
        changed(fleet, after)
    fleet.settle(now=NOW + USUAL)
    return fleet


@pytest.mark.parametrize("after", [PRIVILEGED, {**PRIVILEGED, "image": "engine:7"}], ids=["same", "changed"])
def test_a_recorded_runtime_returns_with_the_rights_it_still_has(after: dict[str, Any]) -> None:
    fleet = restarted(PRIVILEGED, after)
    (container,) = engine(fleet)["containers"]
    assert container["image"] == "engine:1"
    assert container["securityContext"] == {"privileged": True}
    assert fleet.condition(LATEST)[1] == "RolledBack"


@pytest.mark.parametrize("after", [None, ENGINE], ids=["deleted", "without the right"])
def test_a_recorded_runtime_returns_with_no_right_that_it_has_lost(after: dict[str, Any] | None) -> None:
    fleet = restarted(PRIVILEGED, after)
    assert engine(fleet)["containers"][0]["image"] == "engine:9"
    assert "cannot be rolled back" in fleet.condition(LATEST)[2]


@pytest.mark.parametrize("after", [None, {**ENGINE, "image": "engine:7"}], ids=["deleted", "changed"])
def test_a_runtime_without_rights_returns_as_it_was(after: dict[str, Any] | None) -> None:
    fleet = restarted(ENGINE, after)
    assert engine(fleet)["containers"][0]["image"] == "engine:1"
    assert fleet.condition(LATEST)[1] == "RolledBack"


def test_an_image_of_the_tenant_is_not_run_with_the_rights_of_the_runtime() -> None:
    """The runtime of the cluster gives the right and has been recorded; the forged spec of it has another image."""
    fleet = Fleet()
    fleet.put("Namespace", "home")
    fleet.model()
    changed(fleet, PRIVILEGED)
    fleet.service(runtime={"name": "small"})
    fleet.settle()
    fleet.up("chat-engine")
    fleet.settle()
    fleet.service(runtime={"name": "small"}, engine={"minReplicas": 1, "labels": {"a": "b"}})
    fleet.settle()
    fleet.objects["Deployment", "shop", "chat-engine"]["status"] |= {"updatedReplicas": 1, "replicas": 2}
    spec = {"supportedModelFormats": [], "engineConfig": {"runner": {**PRIVILEGED, "image": "evil:1"}}}
    fleet.forge_revision({"spec": SPEC, "runtime": {"kind": "ClusterServingRuntime", "name": "small", "spec": spec}})
    fleet.settle(now=NOW + USUAL)
    assert engine(fleet)["containers"][0]["image"] == "engine:1"
    assert "cannot be rolled back" in fleet.condition(LATEST)[2]


def test_a_disabled_runtime_is_not_returned_to_and_what_was_returned_stays() -> None:
    fleet = restarted(ENGINE, {**ENGINE, "image": "engine:7"})
    fleet.up("chat-engine")
    fleet.settle(now=NOW + USUAL)
    fleet.objects["ClusterServingRuntime", "", "small"]["spec"]["disabled"] = True
    fleet.settle(now=NOW + 2 * USUAL)
    assert engine(fleet)["containers"][0]["image"] == "engine:1", "what serves is kept"
    status, reason, message = fleet.condition(LATEST)
    assert (status, reason) == ("False", "RuntimeDisabled")
    assert "in what served before" in message
    assert fleet.condition("Ready")[0] == "True"


def test_runtimes_are_recorded_once_and_not_for_ever() -> None:
    fleet = serving()
    stored = fleet.objects["ConfigMap", "home", CONFIG_MAP]["data"]
    assert list(stored.values()) == ["small"]
    stored |= {f"{number:064}": "gone" for number in range(MAX_RECORDS)}
    failing(fleet)
    assert len(stored) == MAX_RECORDS + 1, "nothing new was rolled out of a runtime"
    fleet.runtime("other", engineConfig={"runner": {**ENGINE, "image": "engine:9"}})
    fleet.service(runtime={"name": "other"})
    fleet.settle()
    assert sorted(fleet.objects["ConfigMap", "home", CONFIG_MAP]["data"].values()) == ["other", "small"]


def test_a_service_that_flips_keeps_two_revisions() -> None:
    fleet = serving()
    for number in range(30):
        fleet.service(engine={"runner": {"name": "ome-container", "image": f"engine:{number % 2}"}}, a={"b": number})
        fleet.settle(now=NOW + number)
        assert len([key for key in fleet.objects if key[0] == "ControllerRevision"]) <= 2
    assert len(fleet.objects["ConfigMap", "home", CONFIG_MAP]["data"]) == 1


# Forged statuses and canaries


FORGED_STATUSES = ["garbage", "9999-12-31T23:59:59Z", "x" * 10_000, "a/b@c"]


@pytest.mark.parametrize("name", ["since", "good", "returned", "ready-since", "compared", "pods"])
@pytest.mark.parametrize("text", FORGED_STATUSES, ids=range(len(FORGED_STATUSES)))
def test_a_forged_status_keeps_a_service_from_nothing(name: str, text: str) -> None:
    fleet = serving()
    failing(fleet)
    fleet.status()["annotations"][f"modelyard.dev/{name}"] = text
    for seconds in (0.0, 100.0, 2 * USUAL):
        fleet.settle(now=NOW + seconds)
    fleet.service(engine={"runner": {"name": "ome-container", "image": "engine:3"}})
    fleet.settle(now=NOW + 3 * USUAL)
    fleet.up("chat-engine")
    fleet.settle(now=NOW + 3 * USUAL)
    assert fleet.condition(LATEST)[1] == "RolledOut"
    assert engine(fleet)["containers"][0]["image"] == "engine:3"


def test_a_status_that_claims_traffic_is_corrected() -> None:
    fleet = serving()
    true = copy.deepcopy(fleet.status())
    forged_traffic = [{"revisionName": "of-a-neighbour", "percent": 100, "latestRevision": True}]
    fleet.status()["components"]["engine"] |= {"traffic": forged_traffic, "url": "http://neighbour"}
    fleet.status()["url"] = "http://neighbour"
    fleet.settle()
    assert fleet.status() == true


def test_a_runtime_in_a_forged_status_is_used_only_if_it_supports_the_model() -> None:
    fleet = serving()
    fleet.runtime("root", supportedModelFormats=[], engineConfig={"runner": PRIVILEGED})
    fleet.runtime("off", disabled=True, engineConfig={"runner": PRIVILEGED})
    for name in ("root", "off", "none"):
        fleet.status()["annotations"]["modelyard.dev/runtime"] = f"ClusterServingRuntime/{name}@1"
        fleet.service()
        fleet.settle()
        assert "securityContext" not in engine(fleet)["containers"][0]


@pytest.mark.parametrize(("percent", "replicas"), [(-5, 0), (1, 1), (99, 2**31 - 1), (2**40, 1)])
def test_a_canary_has_a_number_of_pods_that_a_workload_can_have(percent: int, replicas: int) -> None:
    fleet = serving()
    fleet.service(engine={**OWN, "canaryTrafficPercent": percent})
    fleet.objects["Deployment", "shop", "chat-engine"]["spec"]["replicas"] = replicas
    fleet.settle()
    canary = fleet.objects.get(("Deployment", "shop", "chat-engine-canary"))
    assert canary is None or 0 <= canary["spec"]["replicas"] < 2**31


def test_a_deployment_that_a_tenant_calls_a_canary_gets_no_traffic() -> None:
    fleet = serving()
    before = copy.deepcopy(fleet.objects["Service", "shop", "chat-engine"]["spec"])
    made = copy.deepcopy(fleet.objects["Deployment", "shop", "chat-engine"])
    made["metadata"] |= {"name": "chat-engine-canary", "uid": "forged"}
    made["metadata"]["labels"] |= {"modelyard.dev/canary": "true"}
    fleet.objects["Deployment", "shop", "chat-engine-canary"] = made
    fleet.up("chat-engine-canary")
    fleet.settle()
    assert ("Deployment", "shop", "chat-engine-canary") not in fleet.objects
    assert fleet.objects["Service", "shop", "chat-engine"]["spec"] == before


# Colliding names of children


@pytest.mark.parametrize(
    ("first", "second"),
    [("chat", "chat-engine"), ("a" * 60, "a" * 60 + "-engine"), ("chat-engine", "chat")],
)
def test_of_two_services_with_one_child_neither_writes_or_deletes_what_is_the_others(first: str, second: str) -> None:
    fleet = service_world.Fleet()
    fleet.model()
    fleet.runtime()
    fleet.service(first)
    fleet.settle(first)
    mine = {key: copy.deepcopy(one) for key, one in fleet.objects.items() if one["metadata"].get("ownerReferences")}
    fleet.service(second)
    fleet.settle(second)
    shared = fleet.standing(second).changes.conflicts
    fleet.objects["InferenceService", "shop", second]["spec"]["engine"] = {"minReplicas": 2}
    fleet.settle(second)
    assert {key: fleet.objects.get(key) for key in mine} == mine
    if shared:
        assert fleet.condition(LATEST, second)[:2] == ("False", "ChildConflict")
        assert f"belongs to InferenceService {first} - rename one of the two" in fleet.condition(LATEST, second)[2]


# What the write path itself refuses


NAMESPACE = Namespace("shop")
RULES = child_rules((*child_kinds(frozenset()), JOBS), frozenset(), NAMESPACE)


def child(kind: str, version: str = "v1", namespace: str = "shop", **body: Any) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "chat-router", "namespace": namespace}, **body}


RBAC = "rbac.authorization.k8s.io/v1"
POD: dict[str, Any] = {"containers": [{"name": "a", "image": "b"}]}
ROLE = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "chat-router"}
ACCOUNT = {"kind": "ServiceAccount", "name": "chat-router", "namespace": "shop"}
PODS_ONLY = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}


def deployment(spec: dict[str, Any], **annotations: str) -> dict[str, Any]:
    template = {"metadata": {"annotations": annotations}, "spec": {**POD, **spec}}
    return child("Deployment", "apps/v1", spec={"template": template})


REFUSED = {
    "kind": child("ClusterRoleBinding", RBAC),
    "secret": child("Secret"),
    "group": child("Deployment", "example.com/v1"),
    "namespace": child("ConfigMap", namespace="kube-system"),
    "no namespace": {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}},
    "privileged": deployment({"containers": [{"name": "a", "securityContext": {"privileged": True}}]}),
    "host": deployment({"hostPID": True}),
    "path": deployment({"volumes": [{"name": "a", "hostPath": {"path": "/etc"}}]}),
    "account": deployment({"serviceAccountName": "admin"}),
    "profile": deployment({}, **{"container.apparmor.security.beta.kubernetes.io/a": "unconfined"}),
    "any kind with pods": child("Job", "batch/v1", spec={"more": [{"deep": {"spec": {**POD, "hostIPC": True}}}]}),
    "no pod": deployment({"containers": ["text"]}),
    "role": child("Role", RBAC, rules=[PODS_ONLY, {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]),
    "other role": child("RoleBinding", RBAC, roleRef={**ROLE, "name": "admin"}, subjects=[ACCOUNT]),
    "cluster role": child("RoleBinding", RBAC, roleRef={**ROLE, "kind": "ClusterRole"}, subjects=[ACCOUNT]),
    "other account": child("RoleBinding", RBAC, roleRef=ROLE, subjects=[ACCOUNT, {**ACCOUNT, "name": "default"}]),
    "account's secrets": child("ServiceAccount", secrets=[{"name": "admin-token"}]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_write_path_refuses(name: str) -> None:
    assert RULES.refusal(REFUSED[name])


def test_the_write_path_lets_pass_what_a_service_has() -> None:
    for manifest in (
        deployment({}),
        child("Role", RBAC, rules=[PODS_ONLY]),
        child("RoleBinding", RBAC, roleRef=ROLE, subjects=[ACCOUNT]),
        child("ServiceAccount"),
    ):
        assert RULES.refusal(manifest) == ""
    allowing = Namespace("shop", {}, {"modelyard.dev/allow-in-pods": "privileged"})
    rules = child_rules((DEPLOYMENTS,), frozenset({Right("host-namespaces", "hostPID", "true")}), allowing)
    assert rules.refusal(REFUSED["privileged"]) == rules.refusal(REFUSED["host"]) == ""
    assert rules.refusal(REFUSED["path"])


def test_a_plan_writes_no_children_unless_its_lifecycle_says_which() -> None:
    plan = Plan(Subject(CONFIG_MAPS, ("shop", "a"), "uid", 1))  # type: ignore[arg-type]
    assert plan.rules.refusal(child("ConfigMap"))


CASES = [("service", name) for name in service_cases.CASES] + [("model", name) for name in kthena_models.names()]


@pytest.mark.parametrize(("kind", "name"), CASES, ids=[f"{kind}-{name}" for kind, name in CASES])
def test_every_rendered_child_passes_the_check_of_the_write_path(kind: str, name: str) -> None:
    result = service_cases.rendered(name) if kind == "service" else kthena_models.rendered_named(name)
    assert isinstance(result, Rendered)
    for rendered in result.children:
        rules = child_rules((), result.rights, Namespace(rendered.body["metadata"]["namespace"]))
        assert rules.check is not None
        assert rules.check(rendered.body) == ""
