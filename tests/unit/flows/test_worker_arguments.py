"""Arguments with which Prefect's own worker is started."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import prefect.client.orchestration
import pytest
from prefect.exceptions import ObjectNotFound

from deployments import worker
from deployments.profile import free_port
from deployments.worker import MissingPackage, require_kubernetes_package, worker_arguments
from modelyard.cluster import Holder

HOST = "127.0.0.1"


def environment_with(port: int) -> dict[str, str]:
    return {"PREFECT_WORKER_WEBSERVER_HOST": HOST, "PREFECT_WORKER_WEBSERVER_PORT": str(port)}


def test_the_worker_has_no_limit_creates_and_installs_nothing_and_is_named_after_its_process() -> None:
    arguments = worker_arguments("ours", environment_with(free_port()))
    assert arguments[:5] == ["worker", "start", "--pool", "ours", "--name"]
    assert arguments[6:] == ["--no-create-pool-if-not-found", "--install-policy", "never", "--with-healthcheck"]
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


def serve_pool_of_type(monkeypatch: pytest.MonkeyPatch, pool_type: str | None, *, installed: bool) -> None:
    """Let Prefect have a pool of this type, none where it is ``None``; is its package for kubernetes installed?"""

    def read_work_pool(name: str) -> SimpleNamespace:
        if pool_type is None:
            raise ObjectNotFound(LookupError(name))
        return SimpleNamespace(name=name, type=pool_type)

    @contextmanager
    def get_client(*, sync_client: bool) -> Iterator[SimpleNamespace]:
        assert sync_client
        assert not installed, "the start of a worker is not delayed by a request that it does not need"
        yield SimpleNamespace(read_work_pool=read_work_pool)

    monkeypatch.setattr(prefect.client.orchestration, "get_client", get_client)
    monkeypatch.setattr(worker, "find_spec", lambda name: object() if installed else None)


def test_a_missing_package_is_named_with_the_pool_its_type_and_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    serve_pool_of_type(monkeypatch, "kubernetes", installed=False)
    with pytest.raises(MissingPackage) as raised:
        require_kubernetes_package("ours")
    assert "pool ours has type kubernetes" in str(raised.value)
    assert "`pip install -c constraints.txt -e '.[kubernetes-worker]'`" in str(raised.value)


@pytest.mark.parametrize(("pool_type", "installed"), [("process", False), (None, False), ("kubernetes", True)])
def test_a_package_that_is_not_needed_or_installed_is_no_obstacle(
    monkeypatch: pytest.MonkeyPatch, pool_type: str | None, installed: bool
) -> None:
    serve_pool_of_type(monkeypatch, pool_type, installed=installed)
    require_kubernetes_package("ours")
