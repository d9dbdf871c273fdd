"""Arguments with which Prefect's own worker is started."""

from __future__ import annotations

import socket

import pytest

from deployments.profile import free_port
from deployments.worker import worker_arguments
from modelyard.cluster import Holder

HOST = "127.0.0.1"


def environment_with(port: int) -> dict[str, str]:
    return {"PREFECT_WORKER_WEBSERVER_HOST": HOST, "PREFECT_WORKER_WEBSERVER_PORT": str(port)}


def test_the_worker_has_no_limit_creates_no_pool_and_is_named_after_its_process() -> None:
    arguments = worker_arguments("ours", environment_with(free_port()))
    assert arguments[:5] == ["worker", "start", "--pool", "ours", "--name"]
    assert arguments[6:] == ["--no-create-pool-if-not-found", "--with-healthcheck"]
    holder = Holder.read(arguments[5])
    assert holder is not None
    assert holder[1:4] == Holder.here()[1:4], "which stays so when the process becomes Prefect's worker"
    assert not holder.has_ended()


def test_a_worker_in_a_pod_has_a_name_that_prefect_accepts(monkeypatch: pytest.MonkeyPatch) -> None:
    for part, value in {"NAMESPACE": "home", "NAME": "worker-0", "UID": "0123-abcd"}.items():
        monkeypatch.setenv(f"POD_{part}", value)
    assert worker_arguments("ours", environment_with(free_port()))[5].startswith("home.worker-0_")


def test_a_worker_runs_without_a_health_endpoint_where_its_port_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server((HOST, 0)) as taken:
        arguments = worker_arguments("ours", environment_with(taken.getsockname()[1]))
    assert "--with-healthcheck" not in arguments
    assert "set PREFECT_WORKER_WEBSERVER_PORT to another one" in capsys.readouterr().out
