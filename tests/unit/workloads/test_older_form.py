"""Runtimes in the older form, with pods at their top level: the same pods as of the form that replaced it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import modelyard
from test_rendering import schema

from modelyard.autoscaling.offline.manifests import read_manifests
from modelyard.cli.convert import converted
from modelyard.cli.services import CURRENT, outcome
from modelyard.resources import ClusterServingRuntime
from modelyard.resources.field_effects import warning
from modelyard.resources.ome.older_form import engine_config, main_container
from modelyard.resources.ome.pods import RuntimePodFields
from modelyard.runtimes import parse_runtime
from modelyard.workloads.rendering.values import Refused, Rendered, canonical

Body = dict[str, Any]

SERVICE = {"model": {"name": "llama"}, "runtime": {"name": "older"}, "engine": {}}
ENTRY = {
    "modelFormat": {"name": "safetensors"},
    "modelFramework": {"name": "transformers"},
    "modelArchitecture": "LlamaForCausalLM",
    "autoSelect": True,
}
MODEL = {**{k: v for k, v in ENTRY.items() if k != "autoSelect"}, "storage": {"storageUri": "hf://meta/llama"}}
LWS = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: leaderworkersets.leaderworkerset.x-k8s.io}
spec: {group: leaderworkerset.x-k8s.io, names: {kind: LeaderWorkerSet}, versions: [{name: v1}]}
"""

POD = """
containers:
- {name: log-shipper, image: 'example.com/logs:1'}
- name: ome-container
  image: example.com/sglang:v0.4
  command: [python3, -m, sglang.launch_server]
  args: [--port, '8080', --tp, $(PARALLELISM_SIZE)]
  ports: [{containerPort: 8080, name: http1}]
  resources: {limits: {nvidia.com/gpu: 8}}
  volumeMounts: [{mountPath: /dev/shm, name: dshm}]
volumes: [{name: dshm, emptyDir: {medium: Memory}}]
nodeSelector: {pool.example.com/mode: cluster-network}
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms: [{matchExpressions: [{key: node.kubernetes.io/instance-type, operator: In, values: [H100.8]}]}]
tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]
labels: {logging-forward: enabled}
annotations: {prometheus.io/scrape: 'true', prometheus.io/port: '8080'}
imagePullSecrets: [{name: registry}]
schedulerName: gpu-scheduler
hostIPC: true
hostNetwork: true
dnsPolicy: ClusterFirstWithHostNet
"""
WORKERS = """
size: 3
containers:
- {name: ome-container, image: 'example.com/sglang:v0.4', command: [worker], resources: {limits: {nvidia.com/gpu: 8}}}
volumes: [{name: scratch, emptyDir: {sizeLimit: 15Gi}}]
nodeSelector: {pool.example.com/mode: workers}
affinity: {podAntiAffinity: {}}
tolerations: [{key: workers, operator: Exists}]
labels: {logging-forward: disabled, rank: other}
annotations: {example.com/rank: other}
imagePullSecrets: [{name: worker-registry}]
schedulerName: worker-scheduler
hostIPC: true
hostNetwork: true
dnsPolicy: Default
"""
FIELDS = [info.alias or name for name, info in RuntimePodFields.model_fields.items()]


def pod() -> Body:
    made: Body = yaml.safe_load(POD)
    return made


def workers() -> Body:
    made: Body = yaml.safe_load(WORKERS)
    return made


def render(folder: Path, runtime: Body, service: Body | None = None, kind: str = "ClusterServingRuntime") -> Any:
    def obj(kind: str, name: str, spec: Body) -> Body:
        namespace = {} if kind.startswith("Cluster") else {"namespace": "shop"}
        return {"apiVersion": "ome.io/v1beta1", "kind": kind, "metadata": {"name": name, **namespace}, "spec": spec}

    runtime = {"supportedModelFormats": [ENTRY], **runtime}
    objects = [
        obj("InferenceService", "chat", {**SERVICE, **(service or {})}),
        obj("ClusterBaseModel", "llama", MODEL),
        obj(kind, "older", runtime),
        yaml.safe_load(LWS),
    ]
    path = folder / "all.yaml"
    path.write_text(yaml.safe_dump_all(objects), encoding="utf-8")
    made = read_manifests([path])
    return outcome(next(manifest for manifest in made if manifest.kind == "InferenceService"), made, CURRENT)


def template(result: Any, kind: str = "Deployment", role: str = "template") -> Body:
    assert isinstance(result, Rendered), result
    spec = next(child.body for child in result.children if child.kind == kind)["spec"]
    made: Body = spec[role] if kind == "Deployment" else spec["leaderWorkerTemplate"][role]
    return made


def canonicals(result: Any) -> list[str]:
    assert isinstance(result, Rendered), result
    return [canonical(child.body) for child in result.children]


def test_a_pod_at_the_top_level_is_the_engines(tmp_path: Path) -> None:
    result = render(tmp_path, pod())
    made = template(result)
    spec = made["spec"]
    assert result.modes == {"engine": "RawDeployment"}
    assert [container["name"] for container in spec["containers"]] == ["log-shipper", "ome-container"]
    engine = spec["containers"][1]
    assert {"name": "PARALLELISM_SIZE", "value": "8"} in engine["env"]
    assert "MODEL_PATH" in [variable["name"] for variable in engine["env"]]
    assert spec["nodeSelector"]["pool.example.com/mode"] == "cluster-network"
    assert (spec["schedulerName"], spec["hostIPC"], spec["dnsPolicy"]) == (
        "gpu-scheduler",
        True,
        "ClusterFirstWithHostNet",
    )
    assert made["metadata"]["labels"]["logging-forward"] == "enabled"
    assert made["metadata"]["annotations"]["prometheus.io/port"] == "8080"
    service = next(child.body for child in result.children if child.name == "chat-engine" and child.kind == "Service")
    assert service["spec"]["ports"][0]["targetPort"] == 8080
    schema("apps/v1", "Deployment").validate(next(c.body for c in result.children if c.kind == "Deployment"))


@pytest.mark.parametrize("field", [field for field in FIELDS if field != "containers"])
def test_every_field_of_the_top_level_reaches_the_engines_pod(tmp_path: Path, field: str) -> None:
    without = {name: value for name, value in pod().items() if name != field}
    assert template(render(tmp_path, pod())) != template(render(tmp_path, without)), field


@pytest.mark.parametrize("field", [*FIELDS, "size"])
def test_every_field_of_the_workers_reaches_their_pods(tmp_path: Path, field: str) -> None:
    whole = {**pod(), "workers": workers()}
    less = {**pod(), "workers": {name: value for name, value in workers().items() if name != field}}
    result = render(tmp_path, less)
    if field == "containers":
        assert isinstance(result, Refused)
        assert str(result).startswith("spec.engine.worker: has neither a runner nor containers")
        return
    kind = "LeaderWorkerSet"
    assert canonicals(render(tmp_path, whole)) != canonicals(result), field
    if field == "size":  # which is reported, too
        runtime = {"kind": "ClusterServingRuntime", "metadata": {"name": "older"}, "spec": less}
        assert parse_runtime(runtime).remarks == ("spec.workers has no size: its groups have no worker pods",)
        return
    leaders = template(render(tmp_path, whole), kind, "leaderTemplate"), template(result, kind, "leaderTemplate")
    assert leaders[0] == leaders[1], f"{field} of the workers changed the leader"


def test_workers_make_groups_whose_leader_is_the_pod_of_the_top_level(tmp_path: Path) -> None:
    result = render(tmp_path, {**pod(), "workers": workers()})
    assert result.modes == {"engine": "MultiNode"}
    leader, worker = (template(result, "LeaderWorkerSet", role) for role in ("leaderTemplate", "workerTemplate"))
    main = leader["spec"]["containers"][1]
    assert {"name": "PARALLELISM_SIZE", "value": "32"} in main["env"]
    assert main["command"] == ["python3", "-m", "sglang.launch_server"]
    assert [container["command"] for container in worker["spec"]["containers"]] == [["worker"]]
    assert worker["metadata"]["labels"]["logging-forward"] == "disabled"
    assert leader["metadata"]["labels"]["logging-forward"] == "enabled"
    assert worker["metadata"]["labels"]["component"] == "engine", "no label of a runtime takes our own away"
    assert "prometheus.io/scrape" not in worker["metadata"]["annotations"], "only the leader has metrics"
    for part in (leader, worker):
        schema("v1", "Pod").validate({"apiVersion": "v1", "kind": "Pod", **part})


@pytest.mark.parametrize(
    ("engine", "check"),
    [
        # Arguments of a service follow those of the pod, as between any container and its runner.
        ({"runner": {"args": ["--x"]}}, {"args": ["--port", "8080", "--tp", "$(PARALLELISM_SIZE)", "--x"]}),
        ({"runner": {"image": "own:1"}}, {"image": "own:1"}),
        ({"containers": [{"name": "ome-container", "image": "own:2"}]}, {"image": "own:2"}),
        ({"runner": {"env": [{"name": "A", "value": "b"}]}}, {"image": "example.com/sglang:v0.4"}),
    ],
)
def test_what_a_service_says_lies_on_top(tmp_path: Path, engine: Body, check: Body) -> None:
    plain = {name: value for name, value in pod().items() if not name.startswith("host")}
    spec = template(render(tmp_path, plain, {"engine": engine}))["spec"]
    main = next(container for container in spec["containers"] if container["name"] == "ome-container")
    assert {name: main[name] for name in check} == check
    assert len(spec["containers"]) == 2


@pytest.mark.parametrize(
    ("names", "main"),
    [
        (["proxy", "ome-container"], "ome-container"),
        (["awesome-proxy", "my-ome-engine"], "my-ome-engine"),
        (["engine", "proxy"], "engine"),
        (["OME", "ome-container"], "ome-container"),
    ],
)
def test_which_container_runs_the_engine(names: list[str], main: str) -> None:
    containers: list[Body] = [{"name": name, "image": "a:1"} for name in names]
    assert names[main_container(containers)] == main
    assert (engine_config({"containers": containers}) or {})["runner"] == {"name": main}


def test_engine_config_with_pods_replaces_the_older_form_and_that_is_told(tmp_path: Path) -> None:
    newer = {"runner": {"name": "ome-container", "image": "newer:1"}}
    result = render(tmp_path, {**pod(), "workers": workers(), "engineConfig": newer})
    assert result.modes == {"engine": "RawDeployment"}
    assert [c["image"] for c in template(result)["spec"]["containers"]] == ["newer:1"]
    (note,) = result.notes
    assert note.reason == "OlderFormWithoutEffect"
    assert note.message.startswith("ClusterServingRuntime older: spec.volumes, spec.nodeSelector")
    assert note.message.endswith("and 9 more: without effect, spec.engineConfig describes the engine's pods")
    assert len(note.message) <= 200
    spec = {"supportedModelFormats": [ENTRY], **pod(), "engineConfig": newer}
    view = parse_runtime({"kind": "ClusterServingRuntime", "metadata": {"name": "older"}, "spec": spec})
    assert any("spec.imagePullSecrets" in remark for remark in view.remarks)
    own = warning(ClusterServingRuntime, {"spec": {"containers": [{}], "workers": {"size": 1}, "engineConfig": newer}})
    reason = "spec.engineConfig describes the engine's pods"
    assert own == f"without effect: spec.containers: {reason}; spec.workers: {reason}"
    for odd in ([], "text", {"engineConfig": 1, "containers": [1]}, {"engineConfig": {"runner": 1}, "containers": {}}):
        assert warning(ClusterServingRuntime, {"spec": odd}) == ""


def test_engine_config_without_pods_lies_on_top_of_the_older_form(tmp_path: Path) -> None:
    more = {"minReplicas": 2, "nodeSelector": {"zone": "a"}, "schedulerName": "other"}
    result = render(tmp_path, {**pod(), "engineConfig": more})
    spec = template(result)["spec"]
    assert (spec["schedulerName"], result.notes) == ("other", ())
    assert {"zone", "pool.example.com/mode"} < set(spec["nodeSelector"])
    budget = next(child.body for child in result.children if child.kind == "HorizontalPodAutoscaler")
    assert budget["spec"]["minReplicas"] == 2


def test_only_an_administrators_runtime_gives_rights(tmp_path: Path) -> None:
    assert isinstance(render(tmp_path, pod()), Rendered)
    own = render(tmp_path, pod(), kind="ServingRuntime")
    assert isinstance(own, Refused)
    assert own.reason == "NotPermitted"
    profile = {"annotations": {"seccomp.security.alpha.kubernetes.io/pod": "unconfined"}}
    plain = {name: value for name, value in pod().items() if not name.startswith("host")}
    odd = {name: value for name, value in {**workers(), **profile}.items() if not name.startswith("host")}
    refused = render(tmp_path, {**plain, "workers": odd}, kind="ServingRuntime")
    assert isinstance(refused, Refused)
    assert "annotations[seccomp.security.alpha.kubernetes.io/pod]" in str(refused)


def test_selection_counts_the_accelerators_and_knows_the_mode() -> None:
    def view(spec: Body) -> tuple[int, str]:
        made = parse_runtime({"kind": "ClusterServingRuntime", "metadata": {"name": "older"}, "spec": spec})
        assert not made.problem
        return made.devices, made.mode

    assert view(pod()) == (8, "RawDeployment")
    assert view({**pod(), "workers": workers()}) == (32, "MultiNode")
    assert view({"engineConfig": {"containers": pod()["containers"]}}) == (8, "RawDeployment")
    assert view({**pod(), "workers": workers(), "engineConfig": {"runner": {"image": "a:1"}}}) == (0, "RawDeployment")


@pytest.mark.parametrize("with_workers", [False, True])
def test_convert_writes_the_form_that_replaced_it_with_the_same_pods(tmp_path: Path, with_workers: bool) -> None:
    spec = pod()
    if with_workers:
        spec["workers"] = {k: v for k, v in workers().items() if k not in ("labels", "annotations")}
    manifest = {
        "apiVersion": "ome.io/v1beta1",
        "kind": "ClusterServingRuntime",
        "metadata": {"name": "older"},
        "spec": {"supportedModelFormats": [ENTRY], **spec},
    }
    before = copy.deepcopy(manifest)
    (made,), remarks = converted(manifest)
    assert manifest == before
    assert set(made["spec"]) == {"supportedModelFormats", "engineConfig"}
    assert "moved to spec.engineConfig" in "".join(remarks)
    assert canonicals(render(tmp_path, made["spec"])) == canonicals(render(tmp_path, spec))


def test_convert_loses_nothing_that_the_newer_form_cannot_say(tmp_path: Path) -> None:
    path = tmp_path / "runtime.yaml"
    metadata = {"apiVersion": "ome.io/v1beta1", "kind": "ServingRuntime", "metadata": {"name": "older"}}
    path.write_text(yaml.safe_dump({**metadata, "spec": {**pod(), "workers": workers()}}), encoding="utf-8")
    done = modelyard("convert", "-f", path)
    assert yaml.safe_load(done.out)["spec"]["workers"]["labels"] == workers()["labels"]
    assert "spec.workers.labels, spec.workers.annotations: engineConfig.worker has no such field" in done.err
    newer = {"engineConfig": {"runner": {"image": "newer:1"}}}
    path.write_text(yaml.safe_dump({**metadata, "spec": {**pod(), **newer}}), encoding="utf-8")
    done = modelyard("convert", "-f", path)
    assert yaml.safe_load(done.out)["spec"] == newer
    assert all(f"spec.{name}" in done.err for name in pod())
    assert "left out, spec.engineConfig describes the engine's pods" in done.err
