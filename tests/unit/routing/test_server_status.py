"""What is said of ModelServers: whether pods are there to serve, and how many."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import pytest
from routing_world import a_pod, a_server, plan, told, written

from modelyard.routing import objects

GROUPS = {"groupKey": "group", "prefillLabels": {"role": "prefill"}, "decodeLabels": {"role": "decode"}}


def counted(*objects: dict[str, Any]) -> tuple[Any, ...]:
    found = plan(*objects)
    assert found is not None
    assert found.status is not None
    return tuple(found.status.fields[name] for name in ("readyPods", "prefillPods", "decodePods", "completeGroups"))


def test_a_server_with_a_ready_pod_is_ready() -> None:
    assert told(a_server(), a_pod()) == {"Ready": ("True", "EndpointsReady")}
    assert counted(a_server(), a_pod("a"), a_pod("b", app="llama", zone="x")) == (2, None, None, None)


@pytest.mark.parametrize(
    "pod",
    [
        a_pod(ready=False),
        a_pod(phase="Pending"),
        a_pod(phase="Succeeded"),
        a_pod(deleting=True),
        a_pod(app="other"),
        a_pod(namespace="bank"),
    ],
)
def test_a_pod_that_cannot_serve_does_not_count(pod: dict[str, Any]) -> None:
    assert told(a_server(), pod) == {"Ready": ("False", "NoReadyPods")}
    assert counted(a_server(), pod) == (0, None, None, None)


def test_every_label_of_the_selector_must_match() -> None:
    server = a_server(app="llama", tier="gold")
    assert (
        counted(server, a_pod("a"), a_pod("b", app="llama", tier="gold"), a_pod("c", tier="gold")) == (1,) + (None,) * 3
    )


def member(name: str, group: str, role: str, **more: Any) -> dict[str, Any]:
    return a_pod(name, app="llama", **({"group": group} if group else {}), role=role, **more)


@pytest.mark.parametrize(
    ("pods", "counts", "ready"),
    [
        ([("0", "prefill"), ("0", "decode")], (2, 1, 1, 1), ("True", "EndpointsReady")),
        ([("0", "prefill"), ("1", "decode")], (2, 1, 1, 0), ("False", "NoCompletePDGroup")),
        ([("0", "prefill"), ("0", "decode"), ("1", "decode")], (3, 1, 2, 1), ("True", "EndpointsReady")),
        ([("", "prefill"), ("", "decode")], (2, 0, 0, 0), ("False", "NoCompletePDGroup")),
        ([("0", "neither")], (1, 0, 0, 0), ("False", "NoCompletePDGroup")),
        ([], (0, 0, 0, 0), ("False", "NoReadyPods")),
    ],
)
def test_groups_are_counted_by_role(
    pods: list[tuple[str, str]], counts: tuple[int, ...], ready: tuple[str, str]
) -> None:
    server = a_server(groups=GROUPS)
    members = [member(f"p{number}", *pod) for number, pod in enumerate(pods)]
    assert counted(server, *members) == counts
    assert told(server, *members) == {"Ready": ready}


def test_a_pod_with_the_labels_of_both_roles_is_a_decode_pod() -> None:
    groups = {"groupKey": "group", "prefillLabels": {"role": "decode"}, "decodeLabels": {"role": "decode"}}
    assert counted(a_server(groups=groups), member("p", "0", "decode")) == (1, 0, 1, 0)


@pytest.mark.parametrize(
    "spec",
    [
        None,
        {},
        {"inferenceEngine": "TGI", "workloadSelector": {"matchLabels": {"a": "b"}}},
        {"inferenceEngine": "vLLM", "workloadSelector": {"matchLabels": {}}},
        {"inferenceEngine": "vLLM", "workloadSelector": {"matchLabels": {"not legal!": "b"}}},
        {"inferenceEngine": "vLLM", "workloadSelector": {"matchLabels": {"a": "b"}, "pdGroup": {"groupKey": "g"}}},
    ],
)
def test_a_server_that_cannot_be_followed_says_so_and_counts_nothing(spec: Any) -> None:
    server = {**a_server(), "spec": spec}
    assert told(server, a_pod()) == {"Ready": ("False", "InvalidSpec")}
    assert counted(server, a_pod()) == (None,) * 4


@pytest.mark.parametrize(
    ("labels", "groups", "message"),
    [
        ({"not legal!": "b", "app": "x"}, None, "spec.workloadSelector.matchLabels: *: 'not legal!' - "),
        ({"a/b/c": "d", "ok": "f", "-": "e"}, None, "spec.workloadSelector.matchLabels: *: 'a/b/c', '-' - "),
        ({"example.com/" + "x" * 64: "d"}, None, f"matchLabels: *: 'example.com/{'x' * 48}...' - "),
        ({"": "d"}, None, "matchLabels: *: '' - "),
        ({"app": "x"}, {"groupKey": "a b"}, "spec.workloadSelector.pdGroup.groupKey: *: 'a b' - "),
        ({"app": "x"}, {"prefillLabels": {"rôle": "p"}}, "pdGroup.prefillLabels: *: 'rôle' - "),
        ({"app": "x"}, {"decodeLabels": {"x" * 900: "p"}}, f"pdGroup.decodeLabels: *: '{'x' * 60}...' - "),
        (
            {"a b": "x"},
            {"decodeLabels": {"c d": "p"}},
            "matchLabels: *: 'a b' - *; spec.workloadSelector.pdGroup.decodeLabels: *: 'c d' - ",
        ),
    ],
)
def test_an_illegal_label_key_is_named(labels: dict[str, str], groups: dict[str, Any] | None, message: str) -> None:
    server = a_server(groups=None if groups is None else {**GROUPS, **groups})
    server["spec"]["workloadSelector"]["matchLabels"] = labels
    status_plan = plan(server, a_pod())
    assert status_plan is not None
    assert fnmatchcase(status_plan.message, f"*{message}use at most 63 letters*"), status_plan.message


@pytest.mark.parametrize(("engine", "named"), [("MindIE", True), ("TGI", False), ({}, False), (None, False)])
def test_a_server_of_mindie_is_named_as_such(engine: Any, named: bool) -> None:
    server = a_server()
    server["metadata"]["annotations"] = {"modelyard.dev/inference-engine": engine}
    status_plan = plan(server, a_pod())
    assert status_plan is not None
    assert ("; the engine is MindIE, whose metrics are not read" in status_plan.message) is named


def test_counts_that_changed_are_written_though_the_condition_stays() -> None:
    server = a_server(groups=GROUPS)
    pods = [member("a", "0", "prefill"), member("b", "0", "decode")]
    stored = written(server, plan(server, *pods))
    same = plan(stored, *pods)
    assert same is not None
    assert not same.writes
    more = plan(stored, *pods, member("c", "0", "decode"))
    assert more is not None
    assert more.writes
    assert not more.notices


def test_counts_go_with_the_groups() -> None:
    grouped = a_server(groups=GROUPS)
    stored = written(grouped, plan(grouped, a_pod()))
    assert counted({**stored, "spec": a_server()["spec"]}, a_pod()) == (1, None, None, None)


def test_a_pod_that_left_is_news() -> None:
    server = a_server()
    found = plan(written(server, plan(server, a_pod())))
    assert found is not None
    assert [(one.reason, one.kind) for one in found.notices] == [("NoReadyPods", "Warning")]


@pytest.mark.parametrize(
    ("annotation", "path"),
    [
        (None, "/metrics"),
        ("/prom/v1", "/prom/v1"),
        ("prom", "/metrics"),
        ("/a b", "/metrics"),
        ("/a?b", "/metrics"),
        ("//evil", "//evil"),
        ("/" + "x" * 300, "/metrics"),
        (7, "/metrics"),
    ],
)
def test_where_a_servers_pods_show_their_metrics(annotation: Any, path: str) -> None:
    server = a_server()
    server["metadata"]["annotations"] = {"modelyard.dev/metrics-path": annotation}
    assert objects.server(server).metrics_path == path
