"""Rendering as a whole: reviewed children for each mode, current schemas, equal bytes, who is refused what."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import yaml
from hypothesis import given, strategies as st
from jsonschema import Draft202012Validator
from kubernetes_validate.utils import schema_contents
from referencing import Registry, Resource
from service_cases import CASES, GOLDEN, rendered, written

from modelyard.autoscaling.offline.manifests import Manifest, read_manifests
from modelyard.cli.services import CURRENT, outcome
from modelyard.objects import Namespace
from modelyard.workloads.rendering.merge import merge
from modelyard.workloads.rendering.routes import Backend, RoutedService, Routes, additional_hosts, overridden, routed
from modelyard.workloads.rendering.settings import IngressSettings, ServingSettings
from modelyard.workloads.rendering.values import Abilities, Refusal, Refused, Rendered, canonical

CORE = ("v1", "apps/v1", "autoscaling/v2", "policy/v1", "networking.k8s.io/v1", "rbac.authorization.k8s.io/v1")
STRICT = "kubernetes-json-schema/v1.37.0-local-strict"
"""Schemas of a current Kubernetes. Of the versions that an old server has instead there are none: it checks them."""


@cache
def definitions() -> Registry[Any]:
    found: Any = Resource.from_contents(schema_contents(f"{STRICT}/_definitions.json", "1.37"))
    return found @ Registry()


@cache
def schema(version: str, kind: str) -> Draft202012Validator:
    """As the package itself puts them together, but once for each kind."""
    group, _, number = version.rpartition("/")
    name = "-".join(part for part in (kind.lower(), group.partition(".")[0], number) if part)
    return Draft202012Validator(schema_contents(f"{STRICT}/{name}.json", "1.37"), registry=definitions())


Edit = Callable[[dict[str, dict[str, Any]]], None]


@pytest.mark.parametrize("case", CASES)
def test_children_are_those_that_were_reviewed(case: str) -> None:
    assert written(rendered(case)) == (GOLDEN / case / "out.yaml").read_text("utf-8")


def bodies(case: str) -> list[dict[str, Any]]:
    result = rendered(case)
    assert isinstance(result, Rendered)
    return [child.body for child in result.children]


@pytest.mark.parametrize("case", CASES)
def test_children_are_valid_by_the_current_schemas(case: str) -> None:
    checked = 0
    for body in bodies(case):
        if body["apiVersion"] in CORE:
            schema(body["apiVersion"], body["kind"]).validate(body)
            checked += 1
    assert checked


@pytest.mark.parametrize("case", CASES)
def test_templates_of_other_kinds_are_valid_pods(case: str) -> None:
    """Kinds that no package has schemas of: what they make pods of is a pod's all the same."""
    for body in bodies(case):
        if body["kind"] == "LeaderWorkerSet":
            templates = list(body["spec"]["leaderWorkerTemplate"].values())
        elif body["kind"] == "RayCluster":
            groups = [body["spec"]["headGroupSpec"], *body["spec"].get("workerGroupSpecs", ())]
            templates = [group["template"] for group in groups]
        else:
            continue
        for template in templates:
            if isinstance(template, dict):
                schema("v1", "Pod").validate({"apiVersion": "v1", "kind": "Pod", **template})


def shuffled(value: Any, order: random.Random) -> Any:
    if isinstance(value, dict):
        names = list(value)
        order.shuffle(names)
        return {name: shuffled(value[name], order) for name in names}
    return [shuffled(one, order) for one in value] if isinstance(value, list) else value


@given(st.sampled_from(CASES), st.randoms(use_true_random=False))
def test_equal_input_gives_equal_bytes(case: str, order: random.Random) -> None:
    found = read_manifests([GOLDEN / case / "in.yaml"])
    again = [Manifest(one.where, shuffled(copy.deepcopy(one.body), order)) for one in found]
    first, second = (
        outcome(next(one for one in each if one.kind == "InferenceService"), each, CURRENT) for each in (found, again)
    )
    assert isinstance(first, Rendered)
    assert isinstance(second, Rendered)
    assert [canonical(child.body) for child in first.children] == [canonical(child.body) for child in second.children]


def changed(case: str, edit: Edit, allow: str = "") -> Rendered | Refused:
    """The outcome of a case after an edit of its manifests, which are given by kind."""
    found = copy.deepcopy(read_manifests([GOLDEN / case / "in.yaml"]))
    if allow:
        metadata = {"name": "shop", "namespace": "", "annotations": {ALLOW: allow}}
        found.append(Manifest("", {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}))
    edit({one.kind: one.body for one in found})
    return outcome(next(one for one in found if one.kind == "InferenceService"), found, CURRENT)


def refusal(case: str, edit: Edit) -> str:
    result = changed(case, edit)
    assert isinstance(result, Refused), result
    return f"{result.reason}: {result}"


def children(case: str, edit: Edit, kind: str) -> list[dict[str, Any]]:
    result = changed(case, edit)
    assert isinstance(result, Rendered), result
    return [child.body for child in result.children if child.kind == kind]


def engine(text: str) -> Edit:
    """An edit of the service's engine."""
    return lambda found: found["InferenceService"]["spec"]["engine"].update(yaml.safe_load(text))


def service(text: str) -> Edit:
    return lambda found: found["InferenceService"]["spec"].update(yaml.safe_load(text))


def annotated(**annotations: str) -> Edit:
    """An edit of the service's annotations."""
    names = {
        "mode": "ome.io/deploymentMode",
        "scaler": "ome.io/autoscalerClass",
        "target": "ome.io/targetUtilizationPercentage",
        "nodes": "modelyard.dev/model-node-selection",
        "init": "ome.io/inject-model-init",
        "domain": "ome.io/ingress-domain",
        "domains": "ome.io/ingress-additional-domains",
        "apparmor": "container.apparmor.security.beta.kubernetes.io/vllm",
        "seccomp": "seccomp.security.alpha.kubernetes.io/pod",
        "template": "ome.io/ingress-domain-template",
        "path": "ome.io/ingress-path-template",
        "scheme": "ome.io/ingress-url-scheme",
        "rdma": "rdma.ome.io/auto-inject",
        "profile": "rdma.ome.io/profile",
    }

    def edit(found: dict[str, dict[str, Any]]) -> None:
        given = found["InferenceService"]["metadata"].setdefault("annotations", {})
        given.update({names[name]: value for name, value in annotations.items()})

    return edit


@pytest.mark.parametrize(
    ("case", "edit", "message"),
    [
        (
            "raw",
            lambda f: f["InferenceService"]["spec"].pop("engine"),
            "InvalidSpec: spec.engine: is missing - write engine: {}",
        ),
        (
            "raw",
            service("model: {name: other}"),
            "BaseModelNotFound: spec.model.name: model other does not exist - make it",
        ),
        (
            "raw",
            lambda f: f["ClusterBaseModel"]["spec"].update(disabled=True),
            "ModelDisabled: spec.runtime: specified",
        ),
        ("raw", service("runtime: {name: other}"), "RuntimeNotFound: spec.runtime: runtime other not found"),
        (
            "raw",
            lambda f: f["ClusterServingRuntime"]["spec"].update(disabled=True),
            "NoSupportingRuntime: spec.runtime: ",
        ),
        (
            "adapter",
            service("model: {name: llama-8b, fineTunedWeights: [support-tone, support-tone]}"),
            "InvalidSpec: spec.model.fineTunedWeights[1]: support-tone is named twice",
        ),
        (
            "adapter",
            service("model: {name: llama-8b, fineTunedWeights: [a]}"),
            "FineTunedWeightsNotFound: spec.model.fine",
        ),
        (
            "adapter",
            lambda f: f["FineTunedWeight"]["spec"].update(disabled=True),
            "FineTunedWeightsDisabled: spec.model.fine",
        ),
        ("claim", lambda f: f["InferenceService"]["metadata"].update(namespace="other"), "BaseModelNotFound: "),
        (
            "raw",
            engine("minReplicas: 0"),
            "ScaleToZeroNotServed: spec.engine.minReplicas: 0 needs something that starts",
        ),
        (
            "prefill-decode-router",
            service("decoder: {minReplicas: 0}"),
            "ScaleToZeroNotServed: spec.decoder.minReplicas",
        ),
        ("multi-node-lws", engine("minReplicas: 0"), "ScaleToZeroNotServed: spec.engine.minReplicas"),
        (
            "raw",
            annotated(mode="Serverless"),
            "ServerlessModeRejected: spec.engine.annotations[ome.io/deploymentMode]: ",
        ),
        ("multi-node-lws", annotated(mode="MultiNodeRayVLLM"), "ModeNotServed: spec.engine.annotations"),
        (
            "raw",
            engine("annotations: {ome.io/deploymentMode: Fast}"),
            "Fast is no deployment mode - write one of RawDep",
        ),
        ("raw", annotated(scaler="keda"), "KedaNotServed: metadata.annotations[ome.io/autoscalerClass]: asks for KEDA"),
        ("raw", annotated(scaler="vpa"), "vpa is no class of autoscalers - write hpa, keda or external"),
        ("raw", annotated(target="0"), "targetUtilizationPercentage]: 0 is no whole number from 1 to 100 - write one"),
        ("raw", annotated(target="101"), "101 is no whole number"),
        ("raw", annotated(target="½"), "½ is no whole number"),
        (
            "raw",
            annotated(nodes="never"),
            "InvalidSpec: metadata.annotations[modelyard.dev/model-node-selection]: never",
        ),
        (
            "raw",
            annotated(init="true"),
            "NotSupported: metadata.annotations[ome.io/inject-model-init]: is not supported",
        ),
        ("raw", annotated(rdma="true", profile="fast"), "fast is no profile - write one of oci-roce"),
        (
            "raw",
            engine("{minAvailable: 1, maxUnavailable: 1}"),
            "spec.engine.maxUnavailable: is given beside minAvailable",
        ),
        (
            "keda",
            engine("kedaConfig: {scalingThreshold: many}"),
            "spec.engine.kedaConfig.scalingThreshold: many is no number",
        ),
        (
            "keda",
            engine("kedaConfig: {scalingOperator: Same}"),
            "scalingOperator: Same is no operator - write one of Greater",
        ),
        (
            "keda",
            engine("kedaConfig: {promServerAddress: 'ftp://x'}"),
            "promServerAddress: 'ftp://x' begins with ftp://",
        ),
        (
            "keda",
            engine("kedaConfig: {promServerAddress: 'http://[x'}"),
            "promServerAddress: 'http://[x' is no URL",
        ),
        (
            "keda",
            engine("kedaConfig: {authenticationRef: {name: a}, authModes: 'basic, odd'}"),
            "authModes: odd: not known",
        ),
        ("ingress", annotated(scheme="ftp"), "ftp is neither http nor https"),
        ("ingress", annotated(template="{{ .Name }}"), "invalid domain name chat - write one with at least two labels"),
        ("ingress", annotated(template="{{ .Spec }}.{{ .Namespace }}.com"), ".Spec is no field of such a template"),
        ("ingress", annotated(template="{{ .Name .example.com"), "is no template"),
        ("ingress", annotated(path="https://host/x"), "contains either a scheme or a host"),
        ("ingress", annotated(path="a?b"), "is no absolute path"),
    ],
)
def test_a_refusal_names_the_field_and_the_remedy(case: str, edit: Edit, message: str) -> None:
    found = refusal(case, edit)
    assert message in found
    assert " - " in found


ALLOW = "modelyard.dev/allow-in-pods"
RIGHTS = [
    ("hostNetwork: true", "host-namespaces", "hostNetwork"),
    ("hostPID: true", "host-namespaces", "hostPID"),
    ("hostIPC: true", "host-namespaces", "hostIPC"),
    ("serviceAccountName: admin", "service-accounts", "serviceAccountName"),
    ("serviceAccount: admin", "service-accounts", "serviceAccount"),
    ("volumes: [{name: root, hostPath: {path: /}}]", "host-paths", "volumes.hostPath"),
    ("runner: {securityContext: {privileged: true}}", "privileged", "containers[vllm].securityContext.privileged"),
    ("runner: {securityContext: {capabilities: {add: [SYS_ADMIN]}}}", "privileged", "capabilities"),
    ("runner: {securityContext: {procMount: Unmasked}}", "privileged", "procMount"),
    ("runner: {securityContext: {seccompProfile: {type: Unconfined}}}", "privileged", "seccompProfile"),
    ("securityContext: {sysctls: [{name: kernel.shm_rmid_forced, value: '1'}]}", "privileged", "sysctls"),
    ("securityContext: {windowsOptions: {hostProcess: true}}", "privileged", "windowsOptions"),
    ("runner: {ports: [{containerPort: 8080, hostPort: 80}]}", "host-namespaces", "hostPort"),
    ("initContainers: [{name: i, image: i, securityContext: {privileged: true}}]", "privileged", "initContainers[i]"),
    (
        "annotations: {container.apparmor.security.beta.kubernetes.io/vllm: unconfined}",
        "privileged",
        "annotations[container.apparmor",
    ),
    ("annotations: {seccomp.security.alpha.kubernetes.io/pod: unconfined}", "privileged", "annotations[seccomp"),
]


@pytest.mark.parametrize(("text", "word", "field"), RIGHTS)
def test_rights_come_from_an_administrator(text: str, word: str, field: str) -> None:
    """Refused to a service and a runtime of its namespace; given by one of the cluster, or allowed there."""
    found = refusal("raw", engine(text))
    assert found.startswith("NotPermitted: spec.engine.")
    assert field in found
    assert f"{ALLOW}: {word} on Namespace shop" in found
    assert isinstance(changed("raw", engine(text), allow=f"hosts, {word}"), Rendered)

    def by_runtime(kind: str) -> Edit:
        def edit(found: dict[str, dict[str, Any]]) -> None:
            runtime = found["ClusterServingRuntime"]
            runtime["spec"]["engineConfig"] = merge(runtime["spec"]["engineConfig"], yaml.safe_load(text))
            runtime["kind"] = kind
            runtime["metadata"]["namespace"] = "shop"

        return edit

    assert isinstance(changed("raw", by_runtime("ClusterServingRuntime")), Rendered)
    assert refusal("raw", by_runtime("ServingRuntime")).startswith("NotPermitted: ")

    def with_its_own_image(found: dict[str, dict[str, Any]]) -> None:
        by_runtime("ClusterServingRuntime")(found)
        engine("runner: {image: 'example.com/own:v1'}")(found)

    assert "spec.engine.runner.image: the runtime gives these pods" in refusal("raw", with_its_own_image)


@pytest.mark.parametrize("field", ["minReplicas", "maxReplicas", "worker.size"])
@pytest.mark.parametrize("number", [2**31, 10**30])
def test_a_number_that_no_field_holds_is_refused(field: str, number: int) -> None:
    found = refusal("raw", engine(f"worker: {{size: {number}}}" if "." in field else f"{field}: {number}"))
    assert found.startswith(f"InvalidSpec: spec.engine.{field}: {number} is above 2147483647 - lower it")


OWN_CODE = {
    "env: [{name: LD_PRELOAD, value: /mnt/claim/a.so}]": "env[LD_PRELOAD]",
    "env: [{name: PYTHONPATH, value: /mnt/claim}]": "env[PYTHONPATH]",
    "env: [{name: VLLM_PLUGINS, value: mine}]": "env[VLLM_PLUGINS]",
    "env: [{name: TZ, value: '$(cat /etc/shadow)'}]": "env[TZ]",
    "env: [{name: HF_TOKEN, valueFrom: {fieldRef: {fieldPath: metadata.name}}}, {name: PATH, value: .}]": "env[PATH]",
    "args: ['--worker-cls=mine.Worker']": "args[0]",
    "args: [--max-model-len, '4096', --trust-remote-code]": "args[2]",
    "args: [-c, 'import os']": "args[0]",
    "args: ['--served-model-name=a --trust-remote-code']": "args[0]",
    "args: [--served-model-name, 'a --trust-remote-code']": "args[1]",
    "env: [{name: SERVED_MODEL_NAME, value: 'a --trust-remote-code'}]": "env[SERVED_MODEL_NAME]",
    "env: [{name: TZ, valueFrom: {configMapKeyRef: {name: a, key: b}}}]": "env[TZ]",
    "args: ['--served-model-name=`id`']": "args[0]",
    "args: [--enforce-eager, a, b]": "args[2]",
    "workingDir: /opt/ml/model": "workingDir",
    "envFrom: [{configMapRef: {name: mine}}]": "envFrom",
    "volumeMounts: [{name: shm, mountPath: /usr/lib/python3}]": "volumeMounts",
    "command: [sh]": "command",
    "securityContext: {runAsUser: 0}": "securityContext",
}


def privileged(kind: str = "ClusterServingRuntime") -> Edit:
    """A runtime that gives its pods a right."""

    def edit(found: dict[str, dict[str, Any]]) -> None:
        runner = found["ClusterServingRuntime"]["spec"]["engineConfig"]["runner"]
        runner["securityContext"] = {"privileged": True}
        found["ClusterServingRuntime"]["kind"] = kind

    return edit


@pytest.mark.parametrize("text", OWN_CODE)
def test_a_service_runs_no_code_of_its_own_in_pods_with_rights(text: str) -> None:
    def edit(found: dict[str, dict[str, Any]]) -> None:
        privileged()(found)
        engine(f"runner: {{{text}}}")(found)

    found = refusal("raw", edit)
    assert found.startswith(f"NotPermitted: spec.engine.runner.{OWN_CODE[text]}: the runtime gives these pods")
    assert f"leave it out, or have an administrator put {ALLOW}: privileged on Namespace shop" in found
    assert isinstance(changed("raw", edit, allow="privileged"), Rendered)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("shareProcessNamespace: true", "shareProcessNamespace"),
        ("runtimeClassName: mine", "runtimeClassName"),
        ("hostAliases: [{ip: 10.0.0.1, hostnames: [huggingface.co]}]", "hostAliases"),
    ],
)
def test_nor_by_any_other_part(text: str, field: str) -> None:
    def edit(found: dict[str, dict[str, Any]]) -> None:
        privileged()(found)
        engine(text)(found)

    assert refusal("raw", edit).startswith(f"NotPermitted: spec.engine.{field}: ")


def test_a_service_sizes_and_places_pods_with_rights() -> None:
    text = (
        "{minReplicas: 3, nodeSelector: {a: b}, tolerations: [{key: a}], labels: {a: b}, runner: {args:"
        " [--max-model-len, '4096', '--tensor_parallel_size=4', --enforce-eager, --served-model-name, a, b],"
        " env: [{name: NCCL_DEBUG, value: INFO}], resources: {limits: {nvidia.com/gpu: 4}}}}"
    )

    def edit(found: dict[str, dict[str, Any]]) -> None:
        privileged()(found)
        engine(text.replace(", b]", "]"))(found)

    assert isinstance(changed("raw", edit), Rendered)


@pytest.mark.parametrize(("text", "well"), [("a-1", True), ("a; id", False), ("a --trust-remote-code", False)])
def test_what_is_filled_into_pods_with_rights_is_one_word(text: str, well: bool) -> None:
    def edit(found: dict[str, dict[str, Any]]) -> None:
        privileged()(found)
        runner = found["ClusterServingRuntime"]["spec"]["engineConfig"]["runner"]
        runner |= {"command": ["sh", "-c"], "args": ["vllm serve --served-model-name {{ .Labels.team }}"]}
        found["InferenceService"]["metadata"]["labels"]["team"] = text

    if well:
        assert isinstance(changed("raw", edit), Rendered)
    else:
        assert refusal("raw", edit).startswith("NotPermitted: metadata.labels[team]: is filled into pods")


@pytest.mark.parametrize("own", [True, False])
def test_code_among_the_files_of_a_tenants_model_runs_in_no_pod_with_rights(own: bool) -> None:
    def edit(found: dict[str, dict[str, Any]]) -> None:
        privileged()(found)
        found["ClusterServingRuntime"]["spec"]["engineConfig"]["runner"]["args"].append("--trust-remote-code")
        if own:
            found["ClusterBaseModel"]["kind"] = "BaseModel"
            found["ClusterBaseModel"]["metadata"]["namespace"] = "shop"

    if own:
        assert refusal("raw", edit).startswith("NotPermitted: spec.model.name: the runtime gives these pods")
    else:
        assert isinstance(changed("raw", edit), Rendered)


def test_files_of_a_model_are_read_only_for_every_container() -> None:
    """Also where a service mounts the volume itself, or has one of that name."""
    mounts = "[{name: modelyard-model, mountPath: /mine}]"
    edit = engine(
        f"{{containers: [{{name: own, image: i, volumeMounts: {mounts}}}],"
        f" initContainers: [{{name: first, image: i, volumeMounts: {mounts}}}],"
        " volumes: [{name: modelyard-model, emptyDir: {}}]}"
    )
    (deployment,) = children("raw", edit, "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    found = [m for one in pod["containers"] + pod["initContainers"] for m in one["volumeMounts"] if m["name"] != "shm"]
    assert len(found) == 3
    assert all(one["readOnly"] for one in found)
    volumes = [one for one in pod["volumes"] if one["name"] == "modelyard-model"]
    assert volumes == [{"name": "modelyard-model", "hostPath": {"path": "/mnt/models/_cluster/llama-8b"}}]


def test_a_volume_by_that_name_is_no_way_around_where_there_is_no_model() -> None:
    def edit(found: dict[str, dict[str, Any]]) -> None:
        spec = found["InferenceService"]["spec"]
        del spec["model"]
        spec["engine"] = yaml.safe_load(
            "{runner: {image: i}, volumes: [{name: modelyard-model, hostPath: {path: /etc}}]}"
        )

    assert "NotPermitted: spec.engine.volumes.hostPath: {'path': '/etc'}" in refusal("raw", edit)


@pytest.mark.parametrize(
    ("path", "reason"), [("/etc", "PathNotAllowed"), ("/mnt/models/../../etc", "PathNotAllowed"), ("/mnt/models/a", "")]
)
def test_only_folders_of_models_are_mounted(path: str, reason: str) -> None:
    result = changed("raw", lambda found: found["ClusterBaseModel"]["spec"]["storage"].update(path=path))
    assert (result.reason if isinstance(result, Refused) else "") == reason


def test_a_claim_of_another_namespace_is_refused() -> None:
    def edit(found: dict[str, dict[str, Any]]) -> None:
        found["BaseModel"]["kind"] = "ClusterBaseModel"
        found["BaseModel"]["spec"]["storage"]["storageUri"] = "pvc://other:weights/llama"
        del found["InferenceService"]["spec"]["model"]["kind"]

    assert "RefNotPermitted: spec.model.name: its files are in claim other/weights" in refusal("claim", edit)


def test_nobodys_business_stays_out_of_the_description_of_a_model() -> None:
    (described,) = children("raw", lambda found: None, "ConfigMap")
    assert "nobodys-business" not in described["data"]["models.json"]


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"domain": "shop.example.org"}, ""),
        ({"domain": "example.org"}, "host example.org could be somebody else's"),
        ({"domain": "other.prod.example.com"}, "host chat.shop.other.prod.example.com could be somebody else's"),
        ({"template": "chat.shop.prod.example.com"}, ""),
        ({"template": "shop.other.prod.example.com"}, "host shop.other.prod.example.com could be somebody else's"),
        ({"template": "chat.other.example.com"}, "host chat.other.example.com could be somebody else's"),
        ({"path": "/chat/shop"}, "path /chat/shop could be somebody else's"),
        ({"template": "shop.{{ .Name }}.com"}, ""),
        ({"template": "workshop.{{ .Name }}.com"}, "host workshop.chat.com could be somebody else's"),
        ({"path": "/other/chat"}, "path /other/chat could be somebody else's"),
        ({"path": "/shop//chat"}, ""),
        ({"path": ""}, ""),
    ],
)
def test_a_service_chooses_no_host_or_path_of_others(chosen: dict[str, str], message: str) -> None:
    result = changed("ingress", annotated(**chosen))
    assert (message in str(result)) if message else isinstance(result, Rendered)
    assert isinstance(changed("ingress", annotated(**chosen), allow="hosts"), Rendered)


def test_in_a_domain_of_another_domain_the_namespace_comes_last_too() -> None:
    """Else namespace ``models`` could take hosts of any other: NAME.OTHER.models.example.com ends in ``models``."""
    theirs = IngressSettings(
        ingressDomain="example.com", additionalIngressDomains=["models.example.com"], disableIngressCreation=False
    )
    backends, settings = {"engine": Backend("engine", "chat-engine", 80)}, ServingSettings(ingress=theirs)
    annotations = {"ome.io/ingress-domain-template": "chat.shop.models.example.com"}

    def route(namespace: str) -> Routes:
        of, abilities = RoutedService("chat", namespace, {}, annotations), Abilities(settings=settings)
        return routed(of, backends, overridden(theirs, annotations), Namespace(namespace), abilities, {}, False)

    assert route("shop").url == "http://chat.shop.models.example.com"
    with pytest.raises(Refusal, match=r"host chat\.shop\.models\.example\.com could be somebody else's"):
        route("models")


def test_credentials_of_the_cluster_go_only_where_an_administrator_sends_them() -> None:
    edit = engine("kedaConfig: {authenticationRef: {name: a, kind: ClusterTriggerAuthentication}}")
    assert "NotPermitted: spec.engine.kedaConfig.authenticationRef.kind: " in refusal("keda", edit)
    assert isinstance(changed("keda", edit, allow="cluster-credentials"), Rendered)


@pytest.mark.parametrize(
    "edit",
    [
        engine("kedaConfig: {promServerAddress: 'http://own:9090'}"),
        lambda found: found["InferenceService"]["metadata"]["annotations"].update(
            {"autoscaling.keda.sh/prometheus.serverAddress": "http://own:9090"}
        ),
    ],
)
def test_credentials_of_the_cluster_do_not_go_to_a_server_that_the_service_chose(edit: Edit) -> None:
    def with_credentials(found: dict[str, dict[str, Any]]) -> None:
        reference = {"name": "of-all", "kind": "ClusterTriggerAuthentication"}
        found["ConfigMap"]["data"] = {"kedaConfig": json.dumps({"authenticationRef": reference})}

    (scaler,) = children("keda", with_credentials, "ScaledObject")
    assert scaler["spec"]["triggers"][0]["authenticationRef"]["name"] == "of-all"

    def both(found: dict[str, dict[str, Any]]) -> None:
        with_credentials(found)
        found["InferenceService"]["metadata"].setdefault("annotations", {})
        edit(found)

    (scaler,) = children("keda", both, "ScaledObject")
    (trigger,) = scaler["spec"]["triggers"]
    assert trigger["metadata"]["serverAddress"] == "http://own:9090"
    assert "authenticationRef" not in trigger


def long_values(found: dict[str, dict[str, Any]]) -> None:
    found["InferenceService"]["metadata"]["annotations"] = {"big": "x" * 50_000}
    engine("runner: {args: ['" + "{{.Annotations.big}}" * 5000 + "']}")(found)


def many_variables(found: dict[str, dict[str, Any]]) -> None:
    engine(json.dumps({"runner": {"env": [{"name": f"own-{i}"} for i in range(20_000)]}}))(found)
    config = found["ClusterServingRuntime"]["spec"]["engineConfig"]
    config["runner"]["env"] = [{"name": f"given-{i}"} for i in range(20_000)]


@pytest.mark.parametrize(
    ("case", "edit", "message"),
    [
        ("ingress", annotated(template="{{" + " " * 100_000), "is longer than 1024 characters"),
        ("ingress", annotated(domains=",".join(f"{i}.org" for i in range(1000))), "names more than 20"),
        ("raw", long_values, "what is filled in is longer than 65536 characters"),
        ("raw", many_variables, "is not a list of at most 1000 objects"),
        ("multi-node-stateful", engine("{minReplicas: 2000000000, maxReplicas: 2000000000}"), "TooManyGroups: "),
        ("multi-node-stateful", engine("worker: {size: 2000000000}"), "TooManyGroups: "),
        ("ray", engine("{minReplicas: 2000000000, maxReplicas: 2000000000}"), "TooManyGroups: "),
    ],
)
def test_what_would_take_all_time_or_memory_is_refused(case: str, edit: Edit, message: str) -> None:
    """Each of these takes hours, or more memory than there is, where nothing stops it."""
    assert message in refusal(case, edit)


def test_profiles_that_annotations_ask_for_are_looked_at_on_the_service_too() -> None:
    for asked in ({"apparmor": "unconfined"}, {"seccomp": "unconfined"}):
        assert refusal("raw", annotated(**asked)).startswith("NotPermitted: spec.engine.annotations[")
    assert isinstance(changed("raw", annotated(apparmor="localhost/tight", seccomp="runtime/default")), Rendered)


def test_fast_networking_comes_with_an_administrators_runtime_and_keeps_what_is_set() -> None:
    assert "NotPermitted: spec.engine." in refusal("raw", annotated(rdma="true"))

    def edit(found: dict[str, dict[str, Any]]) -> None:
        config = found["ClusterServingRuntime"]["spec"]["engineConfig"]
        config["annotations"] = {"rdma.ome.io/auto-inject": "true"}
        config["runner"]["env"] = [{"name": "NCCL_DEBUG", "value": "WARN"}]

    (deployment,) = children("raw", edit, "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["securityContext"] == {"capabilities": {"add": ["IPC_LOCK", "SYS_ADMIN"]}, "privileged": True}
    values = {one["name"]: one["value"] for one in container["env"]}
    assert values["NCCL_DEBUG"] == "WARN"
    assert values["UCX_TLS"] == "tcp"
    assert len([name for name in values if name not in ("MODEL_PATH", "PARALLELISM_SIZE", "LOG_LEVEL")]) == 21
    assert [one["mountPath"] for one in container["volumeMounts"]].count("/dev/shm") == 1


def test_fast_networking_for_a_container_that_is_missing_leaves_the_pod_alone() -> None:
    def edit(found: dict[str, dict[str, Any]]) -> None:
        annotations = {"rdma.ome.io/auto-inject": "true", "rdma.ome.io/container-name": "gone"}
        found["ClusterServingRuntime"]["spec"]["engineConfig"]["annotations"] = annotations

    (deployment,), (plain,) = (children("raw", one, "Deployment") for one in (edit, lambda found: None))
    assert deployment["spec"]["template"]["spec"] == plain["spec"]["template"]["spec"]


def modes_of(case: str, edit: Edit) -> dict[str, str]:
    result = changed(case, edit)
    assert isinstance(result, Rendered), result
    return dict(result.modes)


@pytest.mark.parametrize(
    ("case", "edit", "modes"),
    [
        ("raw", engine("minReplicas: 1"), {"engine": "RawDeployment"}),
        ("serverless", engine("minReplicas: 0"), {"engine": "Serverless"}),
        (
            "serverless",
            engine("{minReplicas: 0, annotations: {ome.io/deploymentMode: Serverless}}"),
            {"engine": "Serverless"},
        ),
        (
            "serverless",
            engine("{minReplicas: 1, annotations: {ome.io/deploymentMode: Serverless}}"),
            {"engine": "Serverless"},
        ),
        ("keda", engine("minReplicas: 0"), {"engine": "RawDeployment"}),
        # A leader of the runtime makes a service with engine: {} a multi-node one.
        ("multi-node-lws", engine("{}"), {"engine": "MultiNode"}),
        ("raw", annotated(mode="PDDisaggregated"), {}),
        ("raw", engine("worker: {size: 1, runner: {image: i}}"), {"engine": "MultiNode"}),
        ("raw", engine("leader: {runner: {image: i}}"), {"engine": "MultiNode"}),
        ("ray", engine("{}"), {"engine": "MultiNodeRayVLLM"}),
        # Components are those that the service names, whatever the runtime has.
        (
            "prefill-decode-router",
            lambda f: f["InferenceService"]["spec"].pop("router") and f["InferenceService"]["spec"].pop("decoder"),
            {"engine": "RawDeployment"},
        ),
    ],
)
def test_deployment_modes(case: str, edit: Edit, modes: dict[str, str]) -> None:
    if modes:
        assert modes_of(case, edit) == modes
    else:  # no runtime of that mode is among those offered
        assert "NoSupportingRuntime" in refusal(case, edit)


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("{}", ""),
        ("{minReplicas: 3, maxReplicas: 3}", ""),
        ("{maxReplicas: 4}", "maxReplicas"),
        ("{minReplicas: 2, maxReplicas: 4, scaleMetric: rps, scaleTarget: 5}", "maxReplicas, scaleMetric, scaleTarget"),
        ("{scaleTarget: 70}", "scaleTarget"),
        ("{kedaConfig: {enableKeda: true}}", "KEDA"),
    ],
)
def test_what_would_scale_ray_clusters_is_told_to_have_no_effect(text: str, fields: str) -> None:
    result = changed("ray", engine(text))
    assert isinstance(result, Rendered), result
    fixed = yaml.safe_load(text).get("minReplicas", 1)
    clusters = [child for child in result.children if child.kind == "RayCluster"]
    assert len(clusters) == fixed
    expected = f"engine: {fixed} Ray clusters: nothing scales RayClusters, so {fields} have no effect"
    assert [note.message for note in result.notes] == ([expected] if fields else [])


def test_a_virtual_service_has_no_children() -> None:
    result = changed("raw", annotated(mode="VirtualDeployment"))
    assert isinstance(result, Rendered)
    assert (result.children, result.virtual) == ((), True)
    assert result.url == result.address == "http://chat.shop.svc.cluster.local"


@pytest.mark.parametrize(
    ("text", "bounds", "metric", "target"),
    [
        ("{minReplicas: 1, maxReplicas: 1}", (1, 1), "cpu", 80),
        ("{minReplicas: 2, maxReplicas: 5, scaleTarget: 30}", (2, 5), "cpu", 30),
        ("{minReplicas: 1, maxReplicas: 1, scaleMetric: memory}", (1, 1), "memory", 80),
        ("{minReplicas: 5, maxReplicas: 10, scaleMetric: cpu, scaleTarget: 50}", (5, 10), "cpu", 50),
        # Bounds that nobody gives come from the runtime (2 and 5), those that the runtime does not give from the kind.
        ("{}", (2, 5), "cpu", 80),
        ("{minReplicas: 7}", (7, 7), "cpu", 80),
        # As OME's webhook stores a service that has only said 5 or 9.
        ("{minReplicas: 5, maxReplicas: 3}", (5, 5), "cpu", 80),
        ("{minReplicas: 9, maxReplicas: 3}", (9, 9), "cpu", 80),
        # What the service says itself is not exceeded for the runtime's sake.
        ("{maxReplicas: 1}", (1, 1), "cpu", 80),
        ("{maxReplicas: 0, scaleTarget: 0}", (2, 5), "cpu", 80),
    ],
)
def test_horizontal_autoscalers(text: str, bounds: tuple[int, int], metric: str, target: int) -> None:
    (body,) = children("raw", engine(text), "HorizontalPodAutoscaler")
    spec = body["spec"]
    assert (spec["minReplicas"], spec["maxReplicas"]) == bounds
    resource = spec["metrics"][0]["resource"]
    assert (resource["name"], resource["target"]["averageUtilization"]) == (metric, target)


def test_a_metric_that_the_server_has_not_is_told_and_the_replicas_stand() -> None:
    result = changed("raw", engine("{scaleMetric: concurrency, minReplicas: 2}"))
    assert isinstance(result, Rendered)
    assert [note.reason for note in result.notes] == ["ScalerNotServed"]
    assert [child.body["spec"]["replicas"] for child in result.children if child.kind == "Deployment"] == [2]
    assert "HorizontalPodAutoscaler" not in {child.kind for child in result.children}


@pytest.mark.parametrize(
    ("edit", "threshold", "query"),
    [
        (engine("{scaleMetric: rps, scaleTarget: 5}"), "5", 'sum(rate({__name__=~"vllm:request_success_total'),
        (engine("{scaleMetric: tps}"), "32", 'sum(rate({__name__=~"vllm:generation_tokens_total'),
        (
            engine("kedaConfig: {customPromQuery: 'sum(up{pod=~\"%s-.*\"}) % 7', scalingThreshold: '2'}"),
            "2",
            'sum(up{pod=~"chat-engine-.*"}) % 7',
        ),
        (engine("kedaConfig: {customPromQuery: 'vector(1)'}"), "32", "vector(1)"),
        (service("kedaConfig: {customPromQuery: 'vector(2)', scalingThreshold: '9'}"), "9", "vector(2)"),
    ],
)
def test_what_keda_asks(edit: Edit, threshold: str, query: str) -> None:
    (body,) = children("keda", edit, "ScaledObject")
    (trigger,) = body["spec"]["triggers"]
    assert trigger["metadata"]["threshold"] == threshold
    assert trigger["metadata"]["query"].startswith(query)


@pytest.mark.parametrize(
    ("strategy", "result"),
    [
        ("{}", {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}),
        ("{rollingUpdate: {maxUnavailable: 1}}", {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}}),
        ("{type: Recreate, rollingUpdate: {maxSurge: 1}}", {"type": "Recreate"}),
    ],
)
def test_strategies_of_deployments(strategy: str, result: dict[str, Any]) -> None:
    (body,) = children("raw", engine(f"deploymentStrategy: {strategy}"), "Deployment")
    assert body["spec"]["strategy"] == result
    assert "replicas" not in body["spec"]


@pytest.mark.parametrize(
    ("host", "domain", "additional", "found"),
    [
        (
            "m.prod.example.com",
            "example.com",
            ["dev.example.com", "dev.example.com", "stg.example.com"],
            ["m.prod.dev.example.com", "m.prod.stg.example.com"],
        ),
        ("m.other.org", "example.com", ["dev.example.com"], []),
    ],
)
def test_additional_hosts(host: str, domain: str, additional: list[str], found: list[str]) -> None:
    assert additional_hosts(host, domain, additional) == found


@pytest.mark.parametrize(
    ("case", "edit", "hosts"),
    [
        ("ingress", lambda f: f["InferenceService"]["spec"].pop("router"), ["chat"]),
        ("ingress", engine("{}"), ["chat", "chat-router", "chat-engine"]),
        ("http-routes", engine("{}"), ["chat", "chat-engine", "chat-decoder"]),
        ("http-routes", service("router: {}"), ["chat", "chat-router", "chat-engine", "chat-decoder"]),
    ],
)
def test_hosts_of_components(case: str, edit: Edit, hosts: list[str]) -> None:
    found = [one["spec"]["hostnames"][0] for one in children(case, edit, "HTTPRoute")]
    for one in children(case, edit, "Ingress"):
        found += [rule["host"] for rule in one["spec"]["rules"] if rule["host"].endswith(".shop.prod.example.com")]
    assert [one.partition(".")[0] for one in found] == hosts


def test_a_service_inside_the_cluster_has_no_way_in() -> None:
    def edit(found: dict[str, dict[str, Any]]) -> None:
        found["InferenceService"]["metadata"]["labels"] = {"networking.knative.dev/visibility": "cluster-local"}

    for case in ("raw", "ingress", "http-routes"):
        result = changed(case, edit)
        assert isinstance(result, Rendered)
        assert result.url == result.address != ""
        assert not {"Ingress", "HTTPRoute"} & {child.kind for child in result.children}
        assert "chat" not in {child.name for child in result.children if child.kind == "Service"}


@given(st.text("abcdefghijklmnopqrstuvwxyz-0123456789", min_size=1, max_size=80))
def test_any_legal_name_gives_legal_children(text: str) -> None:
    name = f"a{text.strip('-')}"
    for case in ("prefill-decode-router", "multi-node-stateful", "keda"):
        result = changed(case, lambda found: found["InferenceService"]["metadata"].update(name=name))
        assert isinstance(result, Rendered), result
        for child in result.children:
            assert len(child.name) <= 63 or child.kind in ("ConfigMap", "ScaledObject")
            for value in child.body["metadata"]["labels"].values():
                assert len(value) <= 63


FIELDS = (
    *("runner", "leader", "worker", "size", "containers", "initContainers", "volumes", "env", "name", "value", "args"),
    *(
        "command",
        "ports",
        "containerPort",
        "resources",
        "limits",
        "nvidia.com/gpu",
        "volumeMounts",
        "mountPath",
        "image",
    ),
    *("securityContext", "capabilities", "add", "affinity", "nodeAffinity", "nodeSelector", "labels", "annotations"),
    *("deploymentStrategy", "rollingUpdate", "type", "kedaConfig", "authenticationRef", "lifecycle", "readinessProbe"),
    *("preferredDuringSchedulingIgnoredDuringExecution", "imagePullSecrets", "tolerations", "hostAliases", "valueFrom"),
)
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**40) | st.text(max_size=8) | st.just("name"),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(
    st.sampled_from(("raw", "prefill-decode-router", "multi-node-stateful", "serverless", "keda", "ingress", "ray")),
    st.sampled_from(({}, {"rdma": "true"}, {"nodes": "preferred"})),
    st.lists(st.tuples(st.lists(st.sampled_from(FIELDS), min_size=1, max_size=3), JUNK), min_size=1, max_size=4),
)
def test_whatever_a_tenant_writes_is_rendered_or_refused(
    case: str, asked: dict[str, str], junk: list[tuple[list[str], Any]]
) -> None:
    def edit(found: dict[str, dict[str, Any]]) -> None:
        for path, value in junk:
            place: Any = found["InferenceService"]["spec"]["engine"]
            for name in path[:-1]:
                place = place.setdefault(name, {}) if isinstance(place, dict) else place
            if isinstance(place, dict):
                place[path[-1]] = value
        annotated(**asked)(found)

    result = changed(case, edit, allow="privileged, host-paths")
    assert isinstance(result, Refused) or all(canonical(child.body) for child in result.children)
