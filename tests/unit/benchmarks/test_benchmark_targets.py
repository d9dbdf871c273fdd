"""What a BenchmarkJob measures and where its results go: every rule, both sides of each bound, hostile ones too."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from benchmark_world import OUTPUT, Benchmarks

from modelyard.benchmarks.jobs.series import LARGEST_SPEC
from modelyard.benchmarks.jobs.targets import LEVELS, LONGEST_RUN, SCENARIOS
from modelyard.benchmarks.jobs.world import MOST_RUNS, TOKENIZER
from modelyard.workloads.rendering.model_routes import served_name

DIRECT = {"url": "http://llm.shop:8000/v1", "apiFormat": "openai", "modelName": "org/llama"}


@pytest.fixture
def fleet() -> Benchmarks:
    return Benchmarks()


def refused(fleet: Benchmarks, reason: str, **spec: Any) -> str:
    """Nothing is made of it, and its state and condition say why; the message."""
    fleet.benchmark(**spec)
    fleet.step()
    assert fleet.told("Accepted")[:2] == ("False", reason), fleet.told("Accepted")
    assert fleet.said["state"] == "Failed"
    message = fleet.told("Accepted")[2]
    assert fleet.said["failureMessage"] == message
    assert fleet.jobs() == []
    return message


def waits(fleet: Benchmarks, reason: str, **spec: Any) -> str:
    fleet.benchmark(**spec)
    fleet.step()
    assert fleet.said["state"] == "Pending"
    assert fleet.told("Completed")[:2] == ("False", reason)
    assert fleet.jobs() == []
    return fleet.told("Completed")[2]


def container(fleet: Benchmarks) -> dict[str, Any]:
    (one,) = fleet.job()["spec"]["template"]["spec"]["containers"]
    found: dict[str, Any] = one
    return found


# The runs


@pytest.mark.parametrize(("levels", "fits"), [(MOST_RUNS, True), (MOST_RUNS + 1, False)])
def test_runs_are_bounded(fleet: Benchmarks, levels: int, fits: bool) -> None:
    spec = {"trafficScenarios": ["D(1,2)"], "numConcurrency": list(range(1, levels + 1))}
    if fits:
        fleet.benchmark(**spec)
        fleet.step()
        assert len(fleet.here.loads) == MOST_RUNS
    else:
        refused(fleet, "TooManyRuns", **spec)


@pytest.mark.parametrize(("minutes", "fits"), [(1, True), (LONGEST_RUN, True), (LONGEST_RUN + 1, False), (0, False)])
def test_minutes_are_bounded(fleet: Benchmarks, minutes: int, fits: bool) -> None:
    if fits:
        fleet.benchmark(maxTimePerIteration=minutes)
        fleet.step()
        assert fleet.job()["spec"]["template"]["spec"]["activeDeadlineSeconds"] > 60 * minutes
    else:
        refused(fleet, "InvalidSpec", maxTimePerIteration=minutes)


def test_defaults_are_the_published_ones_and_it_says_how_long_they_take(fleet: Benchmarks) -> None:
    fleet.benchmark(trafficScenarios=None, numConcurrency=None)
    fleet.step()
    assert len(fleet.here.loads) == len(LEVELS) * len(SCENARIOS["text-to-text"]) == 45
    assert "45 runs of at most 5 minutes, one after the other: 3.8 hours at most" in fleet.told("Accepted")[2]


@pytest.mark.parametrize("size", [LARGEST_SPEC - 2000, LARGEST_SPEC])
def test_what_is_asked_for_fits_into_what_is_remembered(fleet: Benchmarks, size: int) -> None:
    override = {"env": [{"name": "X", "value": "x" * size}]}
    if size < LARGEST_SPEC:
        fleet.benchmark(podOverride=override)
        fleet.step()
        assert len(fleet.jobs()) == 1
    else:
        assert "podOverride" in refused(fleet, "InvalidSpec", podOverride=override)


@pytest.mark.parametrize(
    ("task", "scenario", "fits"),
    [
        ("text-to-text", "N(1,2)/(3,4)", True),
        ("text-to-text", "U(1,2)", True),
        ("text-to-text", "U(1,2)/(3,4)", True),
        ("text-to-text", "N(1,2)/(3,4)junk", False),
        ("text-to-text", "junkU(1,2)", False),
        ("text-to-text", "D(1, 2)", False),
        ("text-to-text", "E(64)", False),
        ("text-to-embeddings", "E(128)", True),
        ("text-to-embeddings", "E(10,20)", False),
        ("image-to-text", "I(1,2,3)", True),
        ("image-to-embeddings", "I(1)", False),
    ],
)
def test_a_scenario_is_of_its_task_and_nothing_beside(fleet: Benchmarks, task: str, scenario: str, fits: bool) -> None:
    if fits:
        fleet.benchmark(task=task, trafficScenarios=[scenario], dataset={"storageUri": "hf://org/prompts"})
        fleet.step()
        assert (fleet.asked().task, fleet.asked().scenario) == (task, scenario)
    else:
        refused(fleet, "InvalidSpec", task=task, trafficScenarios=[scenario])


@pytest.mark.parametrize(
    ("parameters", "fits"),
    [
        ({"temperature": "2.0"}, True),
        ({"temperature": "warm"}, False),
        ({"ignore_eos": "true"}, True),
        ({"ignore_eos": "yes"}, False),
        ({"anything": "$(HOME)"}, True),
        ({"max_tokens": "1"}, False),
        ({"stream": "false"}, False),
        ({"n": "4"}, False),
        ({"min_tokens": "101"}, False),
    ],
)
def test_request_parameters_are_passed_on_as_they_are(
    fleet: Benchmarks, parameters: dict[str, str], fits: bool
) -> None:
    if fits:
        fleet.benchmark(additionalRequestParams=parameters)
        fleet.step()
        assert fleet.asked().request_parameters == parameters
    else:
        refused(fleet, "InvalidSpec", additionalRequestParams=parameters)


# What is measured


@pytest.mark.parametrize("endpoint", [{}, {"endpoint": DIRECT, "inferenceService": {"name": "a", "namespace": "b"}}])
def test_exactly_one_thing_is_measured(fleet: Benchmarks, endpoint: dict[str, Any]) -> None:
    refused(fleet, "InvalidSpec", endpoint=endpoint)


def test_a_service_that_is_not_there_or_not_ready_is_waited_for(fleet: Benchmarks) -> None:
    there = {"inferenceService": {"name": "none", "namespace": "shop"}}
    assert "InferenceService shop/none is not there" in waits(fleet, "ServiceNotFound", endpoint=there)
    fleet.served(ready="False")
    assert "engine: 0 of 1 pods" in waits(fleet, "ServiceNotReady")
    fleet.served(pods=0)
    waits(fleet, "ServiceScaledToZero")
    fleet.served()
    fleet.step()
    assert fleet.said["state"] == "Running"


def test_a_service_of_another_namespace_is_measured_where_that_lets_it(fleet: Benchmarks) -> None:
    fleet.served("chat", "bank")
    fleet.put("Namespace", "bank")
    endpoint = {"inferenceService": {"name": "chat", "namespace": "bank"}}
    assert "modelyard.dev/allow-from: shop on Namespace bank" in refused(fleet, "RefNotPermitted", endpoint=endpoint)
    fleet.put("Namespace", "bank", metadata={"annotations": {"modelyard.dev/allow-from": "shop"}})
    fleet.step()
    assert fleet.asked().url == "http://chat.bank.svc.cluster.local:8080"


def test_the_files_of_another_namespaces_model_are_not_given_with_the_right_to_measure(fleet: Benchmarks) -> None:
    fleet.served("chat", "bank")
    fleet.put("Namespace", "bank", metadata={"annotations": {"modelyard.dev/allow-from": "shop"}})
    fleet.objects["InferenceService", "bank", "chat"]["status"]["annotations"] = {
        "modelyard.dev/model": "BaseModel/m@1"
    }
    fleet.put("BaseModel", "m", "bank", spec={"storage": {"storageUri": "s3://bucket/secret-weights"}})
    endpoint = {"inferenceService": {"name": "chat", "namespace": "bank"}}
    assert TOKENIZER in refused(fleet, "TokenizerUnknown", endpoint=endpoint)
    fleet.benchmark(endpoint=endpoint, annotations={TOKENIZER: "org/llama"})
    fleet.step()
    assert fleet.asked().tokenizer == "org/llama"
    assert not any("hostPath" in one for one in fleet.job()["spec"]["template"]["spec"]["volumes"])


def test_the_url_in_a_status_must_be_the_services_own(fleet: Benchmarks) -> None:
    status = fleet.objects["InferenceService", "shop", "chat"]["status"]
    status["url"] = "http://kubernetes.default.svc:443"
    assert "no URL inside the cluster" in waits(fleet, "ServiceNotReady")
    status["address"] = {"url": "http://chat.shop.svc.cluster.local:9000"}
    fleet.step()
    assert fleet.asked().url == "http://chat.shop.svc.cluster.local:9000"


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest/meta-data",
        "http://metadata.google.internal",
        "http://kubernetes.default.svc",
        "http://chat.bank.svc.cluster.local:8080",
        "http://chat.bank",
        "http://localhost:8080",
        "http://10.0.0.1",
        "http://[::1]:80",
        "http://user:pass@llm.shop:8000",
        "http://llm.shop.evil.com@10.0.0.1",
        "http://example.com",
        "http://llm.shop:99999",
        "http://",
        "http://[",
    ],
)
def test_a_direct_endpoint_reaches_nothing_that_nobody_has_allowed(fleet: Benchmarks, url: str) -> None:
    refused(fleet, "EndpointNotAllowed", endpoint={"endpoint": {**DIRECT, "url": url}})


@pytest.mark.parametrize(
    ("url", "public"),
    [
        ("http://llm.shop:8000", False),
        ("http://llm.shop.svc:8000/v1/", False),
        ("http://llm.shop.svc.cluster.local:8000", False),
        ("https://api.example.com", True),
        ("http://10.1.2.3:8000", False),
    ],
)
def test_a_direct_endpoint_that_is_allowed(fleet: Benchmarks, url: str, public: bool) -> None:
    settings = {"endpoints": ["*.example.com", "10.1.2.3:8000"], "podConfig": {"image": "mine:1", "cpuRequest": "1"}}
    fleet.put("ConfigMap", "benchmarkjob-config", "home", data={"benchmarkjob": json.dumps(settings)})
    fleet.benchmark(endpoint={"endpoint": {**DIRECT, "url": url}})
    fleet.step()
    asked = fleet.asked()
    assert (asked.url, asked.public) == (url.removesuffix("/").removesuffix("/v1"), public)
    assert (asked.backend, asked.model, asked.tokenizer) == ("openai", "org/llama", "org/llama")
    assert container(fleet)["image"] == "mine:1"
    assert container(fleet)["resources"]["requests"] == {"cpu": "1", "memory": "2Gi", "ephemeral-storage": "0"}


def test_a_pod_takes_no_more_of_a_nodes_disk_than_an_administrator_allows(fleet: Benchmarks) -> None:
    """A data set of any size goes there; a full node evicts the pods of others."""
    more = {"limits": {"ephemeral-storage": "10Ti"}, "requests": {"ephemeral-storage": "1Ti"}}
    fleet.benchmark(podOverride={"resources": more})
    fleet.step()
    resources = container(fleet)["resources"]
    assert resources["limits"]["ephemeral-storage"] == "20Gi"
    assert resources["requests"]["ephemeral-storage"] == "0"


@pytest.mark.parametrize("tokenizer", ["../etc", "/a/../b", "a b", "$(X)", "x" * 501])
def test_a_tokenizer_is_a_folder_or_a_hubs_id(fleet: Benchmarks, tokenizer: str) -> None:
    refused(fleet, "InvalidSpec", annotations={TOKENIZER: tokenizer})


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["--model=m", "--served-model-name", "a", "b"], "a"),
        (["vllm", "serve", "org/m", "--port=1"], "org/m"),
        (["sh", "-c", "exec vllm serve org/m --served-model-name=x"], "x"),
        (["--model-path=$(WHERE)"], "/models/m"),
        (["--model"], ""),
        (["sh", "-c", "'unclosed"], ""),
        (["x" * 20_000, "--model=m"], ""),
    ],
)
def test_the_name_an_engine_serves_its_model_by(words: list[str], name: str) -> None:
    assert served_name({"args": words, "env": [{"name": "WHERE", "value": "/models/m"}]}) == name


def test_a_variable_named_thousands_of_times_takes_no_gigabytes() -> None:
    container = {"args": ["--model", "$(A)" * 4000], "env": [{"name": "A", "value": "x" * 1_000_000}]}
    tracemalloc.start()
    try:
        assert len(served_name(container)) == 512
        assert tracemalloc.get_traced_memory()[1] < 1 << 26
    finally:
        tracemalloc.stop()


# Where results go


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("oci://n/ns/b/bucket/o", "InvalidURI"),
        ("pvc://results", "InvalidURI"),
        ("pvc://a:b:results/x", "InvalidURI"),
        ("pvc://bank:results/x", "RefNotPermitted"),
        ("hf://org/model", "InvalidSpec"),
        ("vendor://a/b/c", "InvalidSpec"),
        ("local:///etc", "InvalidSpec"),
        ("github://org/repo@v1", "InvalidSpec"),
        ("oci://n/ns/b/bucket/o/results", "InvalidSpec"),
        (f"s3://bucket/{'x' * 900}", "InvalidSpec"),
    ],
)
def test_results_go_only_where_they_may(fleet: Benchmarks, uri: str, reason: str) -> None:
    refused(fleet, reason, outputLocation={"storageUri": uri})


def test_results_in_a_claim(fleet: Benchmarks) -> None:
    assert "PVC gone not found" in waits(fleet, "ClaimNotFound", outputLocation={"storageUri": "pvc://gone/x"})
    fleet.benchmark(outputLocation={"storageUri": "pvc://shop:results/a/b"}, resultFolderName="mine")
    fleet.step()
    output = fleet.asked().output
    assert (output.uri, output.folder, output.path) == ("pvc://shop:results/a/b", "mine", "/mnt/benchmark-results")
    (mount,) = [one for one in container(fleet)["volumeMounts"] if one["mountPath"] == output.path]
    assert mount == {"name": "benchmark-output-storage", "mountPath": output.path, "subPath": "a/b"}


@pytest.mark.parametrize(("modes", "fits"), [(["ReadOnlyMany"], False), (["ReadOnlyMany", "ReadWriteOnce"], True)])
def test_results_go_to_no_claim_that_can_only_be_read(fleet: Benchmarks, modes: list[str], fits: bool) -> None:
    fleet.put("PersistentVolumeClaim", "frozen", "shop", spec={"accessModes": modes}, status={"phase": "Bound"})
    location = {"storageUri": "pvc://frozen/x"}
    if fits:
        fleet.benchmark(outputLocation=location)
        fleet.step()
        assert len(fleet.jobs()) == 1
    else:
        assert "name one with ReadWriteMany" in refused(fleet, "InvalidSpec", outputLocation=location)


@pytest.mark.parametrize(
    ("folder", "fits"), [("x" * 200, True), ("x" * 201, False), ("../up", False), (".hidden", False)]
)
def test_the_folder_is_one(fleet: Benchmarks, folder: str, fits: bool) -> None:
    if fits:
        fleet.benchmark(resultFolderName=folder)
        fleet.step()
        assert fleet.asked().output.folder == folder
    else:
        refused(fleet, "InvalidSpec", resultFolderName=folder)


def test_credentials_are_in_variables_and_nowhere_else(fleet: Benchmarks) -> None:
    parameters = {"aws_secret_access_key": "s3cret$(HOME)", "aws_region": "eu-west-1", "auth": "user"}
    storage = {"storageUri": "s3://bucket/x", "parameters": parameters, "key": "keys"}
    fleet.benchmark(outputLocation=storage, huggingFaceSecretReference={"name": "hub"})
    fleet.step()
    asked = fleet.asked()
    assert asked.output.parameters == {"aws_region": "eu-west-1"}
    found = container(fleet)
    assert found["command"] == ["modelyard", "benchmarks", "measure"]
    assert found["args"] == ["--report", "/dev/termination-log"]
    env = {one["name"]: one for one in found["env"]}
    assert env["AWS_SECRET_ACCESS_KEY"]["value"] == "s3cret$$(HOME)"
    assert found["envFrom"] == [{"secretRef": {"name": "keys"}}]
    for name in ("HF_TOKEN", "HUGGINGFACE_API_KEY"):
        assert env[name]["valueFrom"]["secretKeyRef"] == {"name": "hub", "key": "HUGGINGFACE_API_KEY"}
    told = fleet.told("Accepted")[2]
    assert "reads aws_secret_access_key of" in told
    warning = fleet.told("SpecWarning")[2]
    assert warning.startswith("spec.outputLocation.parameters: unknown key 'auth' has no effect; put credentials into")
    assert "s3cret" not in json.dumps(fleet.said)


@pytest.mark.parametrize("storage", [{"storageUri": "s3://bucket/x"}, OUTPUT])
def test_results_and_tokenizers_use_the_proxy_that_an_administrator_names(
    fleet: Benchmarks, storage: dict[str, str]
) -> None:
    text = "httpsProxy: http://proxy.example.com:3128\nnoProxy: [minio.example.com]"
    fleet.put("ConfigMap", "modelyard-models", "home", data={"settings": text})
    override = {"env": [{"name": "HTTPS_PROXY", "value": "http://elsewhere:1"}]}
    fleet.benchmark(outputLocation=storage, podOverride=override)
    fleet.step()
    env = {entry["name"]: entry.get("value") for entry in container(fleet)["env"]}
    assert env["HTTPS_PROXY"] == env["https_proxy"] == "http://proxy.example.com:3128"
    assert env["NO_PROXY"] == env["no_proxy"]
    assert env["NO_PROXY"].startswith("minio.example.com,")


def test_an_output_may_have_another_endpoint_only_where_models_may(fleet: Benchmarks) -> None:
    storage = {"storageUri": "s3://bucket/x", "parameters": {"endpoint": "http://minio.store:9000"}}
    assert "modelyard-models" in refused(fleet, "EndpointNotAllowed", outputLocation=storage)
    fleet.put("ConfigMap", "modelyard-models", "home", data={"settings": "endpoints: [minio.store]"})
    fleet.step()
    assert fleet.asked().output.public is False


# The pod


def test_the_pod_needs_no_accelerator_and_no_rights(fleet: Benchmarks) -> None:
    fleet.benchmark()
    fleet.step()
    job = fleet.job()
    assert job["metadata"]["labels"]["benchmark"] == "bench"
    assert job["spec"]["backoffLimit"] == 0
    pod = job["spec"]["template"]["spec"]
    assert "nvidia" not in json.dumps(pod)
    assert pod["restartPolicy"] == "Never"
    assert pod["automountServiceAccountToken"] is False
    (label,) = pod["nodeSelector"].items()
    assert label == (next(iter(pod["nodeSelector"])), "Ready")
    (volume,) = [one for one in pod["volumes"] if "hostPath" in one]
    assert volume["hostPath"]["path"] == "/mnt/models/l"
    assert all(one.get("readOnly") for one in container(fleet)["volumeMounts"] if one["name"] == volume["name"])
    assert container(fleet)["securityContext"]["allowPrivilegeEscalation"] is False


def test_an_override_is_merged_as_published(fleet: Benchmarks) -> None:
    override = {
        "image": "other:2",
        "env": [
            {"name": "HOME", "value": "/home"},
            {"name": "MEASUREMENT", "value": "{}"},
            {"name": "A", "value": "b"},
        ],
        "envFrom": [{"configMapRef": {"name": "more"}}],
        "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
        "resources": {"limits": {"memory": "4Gi"}},
        "tolerations": [{"operator": "Exists"}],
        "nodeSelector": {"pool": "cpu"},
        "volumes": [{"name": "extra", "emptyDir": {}}],
        "affinity": {"podAntiAffinity": {}},
    }
    fleet.benchmark(podOverride=override, outputLocation={"storageUri": "s3://bucket/x", "key": "keys"})
    fleet.step()
    pod, one = fleet.job()["spec"]["template"]["spec"], container(fleet)
    env = {entry["name"]: entry["value"] for entry in one["env"]}
    assert one["image"] == "other:2"
    assert (env["HOME"], env["A"], env["ENABLE_UI"]) == ("/home", "b", "false")
    assert fleet.asked().scenario == "D(100,100)", "what is measured is not for an override to say"
    assert one["envFrom"] == [{"configMapRef": {"name": "more"}}, {"secretRef": {"name": "keys"}}]
    assert {"/tmp", "/scratch"} <= {mount["mountPath"] for mount in one["volumeMounts"]}
    assert one["resources"]["limits"] == {"cpu": "2", "memory": "4Gi", "ephemeral-storage": "20Gi"}
    assert pod["tolerations"] == [{"operator": "Exists"}]
    assert pod["nodeSelector"]["pool"] == "cpu"
    assert {"extra", "scratch"} <= {volume["name"] for volume in pod["volumes"]}
    assert pod["affinity"] == {"podAntiAffinity": {}}


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ({"volumes": [{"name": "root", "hostPath": {"path": "/"}}]}, "NotPermitted"),
        ({"volumes": [{"emptyDir": {}}]}, "InvalidSpec"),
        ({"env": "x"}, "InvalidSpec"),
        ({"resources": {"limits": {"cpu": "much"}}}, "InvalidSpec"),
        ({"volumeMounts": [{"name": "x"}]}, "InvalidSpec"),
    ],
)
def test_an_override_has_no_more_reach_than_its_namespace(
    fleet: Benchmarks, override: dict[str, Any], reason: str
) -> None:
    assert "podOverride" in refused(fleet, reason, podOverride=override)


@pytest.mark.parametrize("task", ["image-to-text", "image-to-embeddings"])
def test_images_are_made_up_by_nobody(fleet: Benchmarks, task: str) -> None:
    said = refused(fleet, "InvalidSpec", task=task, trafficScenarios=["I(64,64)"])
    assert "spec.dataset: " in said
    assert "hf://OWNER/NAME" in said


def test_settings_that_cannot_be_used_hold_everything_up_and_are_named(fleet: Benchmarks) -> None:
    fleet.put("ConfigMap", "benchmarkjob-config", "home", data={"benchmarkjob": "endpoints: 1"})
    assert "benchmarkjob-config, key benchmarkjob: endpoints" in waits(fleet, "SettingsInvalid")
