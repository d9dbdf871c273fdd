"""A namespace, model or service that is named and does not exist: an error that says so, with the same exit code."""

from __future__ import annotations

import pytest
from command_line import modelyard_beside

from modelyard.cluster import Cluster
from modelyard.local.stack import LocalStack

pytestmark = pytest.mark.integration

IN_A_NAMESPACE = [
    ("plan", "--prometheus", "http://127.0.0.1:9"),
    ("plan", "--prometheus", "http://127.0.0.1:9", "--exit-code"),
    ("models",),
    ("models", "why", "llama"),
    ("services",),
    ("services", "why", "chat"),
    ("runtimes", "explain", "llama"),
    ("route", "explain", "-m", "llama"),
    ("gateway", "--gateway", "g"),
]


@pytest.fixture(autouse=True)
def connected(control_plane: LocalStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))


def inside(command: tuple[str, ...], namespace: str) -> tuple[str, ...]:
    group = command[0] in ("models", "services") and len(command) == 1
    return (*command[:1], "-n", namespace) if group else (*command, "-n", namespace)


@pytest.mark.parametrize("command", IN_A_NAMESPACE, ids=" ".join)
async def test_a_namespace_that_does_not_exist_is_an_error(control_plane: LocalStack, command: tuple[str, ...]) -> None:
    done = await modelyard_beside(*inside(command, "nosuch"))
    assert (done.code, done.out) == (1, "")
    (line,) = done.err.splitlines()
    assert line.startswith("error: namespace nosuch does not exist; there are ")


async def test_a_misspelt_namespace_names_the_nearest_one(namespace: str) -> None:
    done = await modelyard_beside("plan", "-n", f"{namespace}x", "--prometheus", "http://127.0.0.1:9")
    assert (done.code, done.err) == (1, f"error: namespace {namespace}x does not exist; did you mean {namespace}?\n")


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (("models", "why", "missing"), "there is no model missing in namespace "),
        (("services", "why", "missing"), "there is no service missing in namespace "),
        (("runtimes", "explain", "missing"), "model missing not found in namespace "),
        (("route", "explain", "-m", "missing"), "404: "),
    ],
)
async def test_commands_that_explain_end_alike_where_there_is_nothing(
    namespace: str, command: tuple[str, ...], text: str
) -> None:
    done = await modelyard_beside(*command, "-n", namespace)
    assert done.code == 1
    assert text in done.err + done.out


async def test_commands_that_explain_end_alike_where_it_is_refused(
    control_plane_cluster: Cluster, namespace: str
) -> None:
    model = {"storage": {"storageUri": "hf://demo/x", "path": "/etc/x"}, "modelFormat": {"name": "safetensors"}}
    service = {"engine": {"minReplicas": 1}, "model": {"name": "wrong"}, "runtime": {"name": "missing"}}
    for kind, name, spec in (("BaseModel", "wrong", model), ("InferenceService", "chat", service)):
        metadata = {"name": name, "namespace": namespace}
        body = {"apiVersion": "ome.io/v1beta1", "kind": kind, "metadata": metadata, "spec": spec}
        await control_plane_cluster.apply(body)
    for command in (("models", "why", "wrong"), ("services", "why", "chat"), ("runtimes", "explain", "wrong")):
        done = await modelyard_beside(*command, "-n", namespace)
        assert done.code == 1, command
        assert done.out or done.err
