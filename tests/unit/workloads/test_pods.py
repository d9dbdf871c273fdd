"""Assembling pods: the runner, arguments, variables, placeholders, files, ports, names."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, strategies as st

from modelyard.workloads.rendering import names
from modelyard.workloads.rendering.pods import (
    NONE,
    PREFERRED,
    REQUIRED,
    ModelFiles,
    assembled,
    filled,
    probed,
    service_ports,
    with_env,
    with_files,
    with_parallelism,
)
from modelyard.workloads.rendering.values import MOST_NESTED, Refusal


def test_a_runner_is_merged_into_the_container_of_its_name_and_arguments_are_joined() -> None:
    pod = assembled(
        {
            "containers": [
                {"name": "sidecar", "image": "s"},
                {
                    "name": "ome-container",
                    "args": ["--a"],
                    "env": [{"name": "RUNTIME_ENV", "value": "1"}],
                    "resources": {"requests": {"cpu": "500m"}},
                },
            ]
        },
        {"args": ["--b"], "env": [{"name": "CUSTOM_ENV", "value": "2"}], "resources": {"requests": {"memory": "2Gi"}}},
        "spec.engine",
    )
    assert pod.main == "ome-container"
    assert [one["name"] for one in pod.spec["containers"]] == ["sidecar", "ome-container"]
    assert pod.container["args"] == ["--a", "--b"]
    assert [one["name"] for one in pod.container["env"]] == ["CUSTOM_ENV", "RUNTIME_ENV"]
    assert pod.container["resources"] == {"requests": {"cpu": "500m", "memory": "2Gi"}}


def test_a_runner_of_another_name_comes_after_the_sidecars_and_is_the_main_container() -> None:
    pod = assembled({"containers": [{"name": "sidecar"}]}, {"name": "vllm", "image": "v"}, "spec.engine")
    assert [one["name"] for one in pod.spec["containers"]] == ["sidecar", "vllm"]
    assert pod.container == {"name": "vllm", "image": "v"}


@pytest.mark.parametrize(("containers", "main"), [(["a", "ome-container"], "ome-container"), (["a", "b"], "a")])
def test_the_main_container_where_there_is_no_runner(containers: list[str], main: str) -> None:
    assert assembled({"containers": [{"name": name} for name in containers]}, None, "spec.engine").main == main


@pytest.mark.parametrize(
    ("spec", "runner", "message"),
    [
        ({}, None, "spec.engine: has neither a runner nor containers - give it a runner"),
        ({"containers": [{"image": "i"}]}, None, r"spec.engine.containers\[0\]: has no name"),
        ({"containers": [{"name": {"a": 1}}]}, None, r"spec.engine.containers\[0\]: has no name"),
        ({"volumes": "all"}, {"image": "i"}, "spec.engine.volumes: is not a list"),
        ({}, {"resources": {"limits": {"cpu": "lots"}}}, r"spec.engine.runner.resources.limits\[cpu\]: "),
        ({}, {"resources": []}, "spec.engine.runner.resources: is not an object"),
        ({}, {"securityContext": "odd"}, "spec.engine.runner.securityContext: is not an object"),
        ({}, {"securityContext": {"capabilities": ["SYS_ADMIN"]}}, "securityContext.capabilities: is not an object"),
        ({}, {"securityContext": {"capabilities": {"add": "SYS_ADMIN"}}}, "capabilities.add: is not a list of texts"),
        ({"securityContext": {"capabilities": []}}, None, "spec.engine.securityContext.capabilities: is not an object"),
        ({"affinity": {"nodeAffinity": []}}, None, "spec.engine.affinity.nodeAffinity: is not an object"),
        ({}, {"lifecycle": []}, "spec.engine.runner.lifecycle: is not an object"),
        ({}, {"args": [1]}, "spec.engine.runner.args: is not a list of texts"),
        ({}, {"env": [{"value": "1"}]}, r"spec.engine.runner.env\[0\]: has no name"),
        ({"containers": [{"name": str(i)} for i in range(1001)]}, None, "is not a list of at most 1000 objects"),
    ],
)
def test_what_is_no_pod_is_refused_by_its_field(spec: Any, runner: Any, message: str) -> None:
    with pytest.raises(Refusal, match=message):
        assembled(spec, runner, "spec.engine")


def test_what_is_nested_without_end_is_refused() -> None:
    deep: Any = {}
    for _ in range(MOST_NESTED * 100):
        deep = {"a": deep}
    with pytest.raises(Refusal, match="nested more than"):
        assembled({"affinity": deep}, {"image": "i"}, "spec.engine")


def test_placeholders_in_command_arguments_and_values_alone() -> None:
    metadata = {
        "name": "chat",
        "namespace": "shop",
        "labels": {"team.example.com/cost-centre": "42"},
        "annotations": {"note": '<"&'},
    }
    container = {
        "name": "{{.Name}}",
        "image": "{{.Name}}",
        "command": ["run-{{ .Name }}"],
        "args": [
            "{{.Namespace}}/{{.Labels.team.example.com/cost-centre}}",
            '{{ index .Annotations "note" }}{{.Annotations.note}}{{.Labels.missing}}',
            "{% for m in messages %}{{ m['content'] }}{{ .Spec }}{{end",
            "$(MODEL_PATH) ${HOME}",
        ],
        "env": [
            {"name": "A", "value": "{{.Name}}"},
            {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "{{.Name}}"}}},
        ],
    }
    found = filled(container, metadata)
    assert found["name"] == found["image"] == "{{.Name}}"
    assert found["command"] == ["run-chat"]
    assert found["args"] == [
        "shop/42",
        '<"&<"&',
        "{% for m in messages %}{{ m['content'] }}{{ .Spec }}{{end",
        "$(MODEL_PATH) ${HOME}",
    ]
    assert found["env"] == [{"name": "A", "value": "chat"}, container["env"][1]]


@pytest.mark.parametrize(("gpus", "pods", "size"), [(8, 2, "16"), (4, 1, "4"), (8, 4, "32"), (0, 2, "")])
def test_parallelism(gpus: int, pods: int, size: str) -> None:
    for resources in ({"limits": {"nvidia.com/gpu": str(gpus)}}, {"requests": {"nvidia.com/gpu": gpus}}):
        container = with_parallelism({"name": "c", "resources": resources}, pods, "spec.engine")
        assert "".join(one["value"] for one in container.get("env", ())) == size


ASKS = {"name": "c", "args": ["--tp=$(PARALLELISM_SIZE)"], "resources": {"limits": {"vendor.example/chip": "4"}}}


def test_a_reference_to_the_parallelism_that_nothing_sets_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Refusal) as error:
        with_parallelism(ASKS, 1, "spec.engine")
    assert str(error.value) == (
        "spec.engine.containers[c].resources: names no accelerator (vendor.example/chip), and the container uses"
        " $(PARALLELISM_SIZE) - ask for accelerators, set PARALLELISM_SIZE in env, or list the resource in the worker's"
        " MODELYARD_ACCELERATORS"
    )
    monkeypatch.setenv("MODELYARD_ACCELERATORS", "vendor.example/chip")
    assert with_parallelism(ASKS, 2, "spec.engine")["env"] == [{"name": "PARALLELISM_SIZE", "value": "8"}]


@pytest.mark.parametrize(
    "change",
    [
        {"env": [{"name": "PARALLELISM_SIZE", "value": "2"}]},
        {"env": [{"name": "PARALLELISM_SIZE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]},
        {"envFrom": [{"configMapRef": {"name": "sizes"}}]},
        {"args": ["--tp=$$(PARALLELISM_SIZE)"]},
        {"args": ["exec serve --tp ${PARALLELISM_SIZE:-1}"], "command": ["sh", "-c"]},
        {"args": []},
    ],
)
def test_a_container_that_needs_no_parallelism_stays_as_it_is(change: dict[str, Any]) -> None:
    container = {**ASKS, **change}
    assert with_parallelism(container, 1, "spec.engine") == container


@pytest.mark.parametrize("use", ["command", "env"])
def test_the_parallelism_is_looked_for_wherever_kubernetes_fills_it_in(use: str) -> None:
    text = "$$$(PARALLELISM_SIZE)"
    used = {"command": ["serve", text]} if use == "command" else {"env": [{"name": "ARGS", "value": text}]}
    with pytest.raises(Refusal):
        with_parallelism({"name": "c", **used}, 1, "spec.engine")


def test_variables_are_added_before_the_others_and_replaced_only_when_asked() -> None:
    container = {"name": "c", "env": [{"name": "A", "value": "theirs"}]}
    added = with_env(container, {"A": "ours", "B": "ours"})
    assert added["env"] == [{"name": "B", "value": "ours"}, {"name": "A", "value": "theirs"}]
    assert with_env(container, {"A": "ours"}, replace=True)["env"] == [{"name": "A", "value": "ours"}]


FILES = ModelFiles(
    "modelyard-model", {"hostPath": {"path": "/m/a"}}, "/m/a", label="models.ome.io/x", env={"MODEL_PATH": "/m/a"}
)


@pytest.mark.parametrize("selection", [REQUIRED, PREFERRED, NONE])
def test_files_of_a_model(selection: str) -> None:
    pod = with_files(assembled({"nodeSelector": {"zone": "a"}}, {"image": "i"}, "spec.engine"), FILES, selection)
    assert pod.spec["volumes"] == [{"name": "modelyard-model", "hostPath": {"path": "/m/a"}}]
    assert pod.container["volumeMounts"] == [{"name": "modelyard-model", "mountPath": "/m/a", "readOnly": True}]
    assert pod.container["env"] == [{"name": "MODEL_PATH", "value": "/m/a"}]
    chosen = {"models.ome.io/x": "Ready"} if selection == REQUIRED else {}
    assert pod.spec["nodeSelector"] == {**chosen, "zone": "a"}
    assert ("affinity" in pod.spec) == (selection == PREFERRED)


def test_a_users_mount_and_variable_stay_and_its_volume_of_our_name_does_not() -> None:
    runner = {"volumeMounts": [{"name": "own", "mountPath": "/m/a"}], "env": [{"name": "MODEL_PATH", "value": "/own"}]}
    spec = {"volumes": [{"name": "modelyard-model", "hostPath": {"path": "/etc"}}, {"name": "own", "emptyDir": {}}]}
    pod = with_files(assembled(spec, runner, "spec.engine"), FILES)
    assert pod.container["volumeMounts"] == runner["volumeMounts"]
    assert pod.container["env"] == runner["env"]
    assert pod.spec["volumes"] == [{"name": "own", "emptyDir": {}}, {"name": FILES.volume, **FILES.source}]


def test_ports_of_a_service() -> None:
    tcp = {"protocol": "TCP"}
    assert service_ports({"name": "c"}) == [{"name": "c", "port": 8080, "targetPort": 8080, **tcp}]
    one = {"name": "c", "ports": [{"containerPort": 9}]}
    assert service_ports(one) == [{"port": 9, "targetPort": 9, **tcp}]
    two = {"name": "c", "ports": [{"containerPort": 9}, {"containerPort": 10, "name": "x", "protocol": "UDP"}]}
    assert service_ports(two) == [
        {"name": "port-9", "port": 9, "targetPort": 9, **tcp},
        {"name": "x", "port": 10, "targetPort": 10, "protocol": "UDP"},
    ]


def test_a_probe_where_there_is_none() -> None:
    own = {"name": "c", "readinessProbe": {"exec": {"command": ["x"]}}}
    assert probed(own) == own
    assert probed({"name": "c", "ports": [{"containerPort": 9}]})["readinessProbe"]["tcpSocket"] == {"port": 9}
    assert probed({"name": "c"})["readinessProbe"]["tcpSocket"] == {"port": 8080}


@given(st.text(max_size=300), st.text(max_size=300))
def test_names_are_legal_told_apart_and_kept_where_they_can_be(one: str, other: str) -> None:
    for make, legal in (
        (names.fitting, r"[a-z]([-a-z0-9]*[a-z0-9])?"),
        (names.label_value, r"([A-Za-z0-9]([-\w.]*[A-Za-z0-9])?)?"),
    ):
        found = make(one)
        assert len(found) <= 63
        assert re.fullmatch(legal, found, re.ASCII)
        assert make(found) == found
        assert (found == make(other)) == (one == other) or found in (one, other)


def test_names_as_they_are_published() -> None:
    assert names.component("chat", names.ENGINE) == "chat-engine"
    assert names.group_set("chat-engine") == "lws-chat-engine"
    assert names.scaled_object("chat-engine") == "scaledobject-chat-engine"
    assert names.model_config("chat") == "modelconfig-chat"
    longest = "a" * 63
    assert names.component(longest, names.ENGINE).endswith("a-engine")
    first, second = (names.model_config(f"team-{x}-" + "x" * 40 + "-llama-3-3-70b-instruct") for x in "ab")
    assert first != second
    assert names.label_value("Meta AI") != "Meta AI"
