"""Which ClusterIP and port leads to which pods, and which names there are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from modelyard.hosts import HostsFile
from modelyard.local.agent.services import Address, curl_text, hosts_text, table


def service(name: str = "web", ip: str = "127.20.128.7", **spec: Any) -> dict[str, Any]:
    ports = [{"port": 80, "targetPort": "http", "protocol": "TCP"}]
    return {
        "metadata": {"name": name, "namespace": "chat"},
        "spec": {"clusterIP": ip, "selector": {"app": name}, "ports": ports, **spec},
    }


def pod(number: int, ready: bool = True, app: str = "web", **more: Any) -> dict[str, Any]:
    metadata = {"name": f"p{number}", "namespace": "chat", "labels": {"app": app}, **more.pop("metadata", {})}
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    status = {"podIP": f"127.20.1.{number}", "phase": "Running", "conditions": conditions, **more.pop("status", {})}
    containers = [{"name": "main", "ports": [{"name": "http", "containerPort": 8000}]}]
    return {"metadata": metadata, "spec": {"containers": containers, **more}, "status": status}


WEB = Address("127.20.128.7", 80)


@pytest.mark.parametrize(
    ("which", "serves"),
    [
        (pod(1), True),
        (pod(1, ready=False), False),
        (pod(1, app="other"), False),
        (pod(1, metadata={"namespace": "other"}), False),
        (pod(1, metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}), False),
        (pod(1, status={"podIP": ""}), False),
        (pod(1, status={"podIP": "127.20.1.1\noutput = x"}), False),
        (pod(1, status={"phase": "Succeeded"}), False),
    ],
)
def test_a_service_leads_to_its_ready_pods_alone(which: dict[str, Any], serves: bool) -> None:
    found = table([service()], [which])
    assert found.backends == ({WEB: (Address("127.20.1.1", 8000),)} if serves else {})
    # The name is there as long as the Service is.
    assert found.hosts["web.chat.svc"] == ("127.20.128.7",)


def test_pods_that_are_not_ready_are_there_where_the_service_says_so() -> None:
    found = table([service(publishNotReadyAddresses=True)], [pod(1, ready=False)])
    assert found.backends[WEB] == (Address("127.20.1.1", 8000),)


@pytest.mark.parametrize(
    ("port", "to"),
    [
        ({"port": 80}, 80),
        ({"port": 80, "targetPort": 9000}, 9000),
        ({"port": 80, "targetPort": "http"}, 8000),
        ({"port": 80, "targetPort": "grpc"}, None),
        ({"port": 80, "targetPort": 9000, "protocol": "UDP"}, None),
    ],
)
def test_a_target_port_is_a_number_or_a_name_of_the_pod(port: dict[str, Any], to: int | None) -> None:
    found = table([service(ports=[port])], [pod(1)])
    assert found.backends == ({} if to is None else {WEB: (Address("127.20.1.1", to),)})


def test_a_service_without_selector_leads_nowhere() -> None:
    assert table([service(selector=None)], [pod(1)]).backends == {}


def test_a_headless_service_is_its_pods_by_their_names(tmp_path: Path) -> None:
    members = [pod(n, hostname=f"web-{n}", subdomain="web") for n in (1, 2)] + [pod(3, hostname="x", subdomain="no")]
    found = table([service(ip="None")], members)
    assert found.backends == {}
    path = tmp_path / "hosts"
    path.write_text(hosts_text(found))
    assert "#" not in path.read_text()  # libnss-wrapper, by which other programs may read it, takes no comment
    hosts = HostsFile(path)
    assert hosts.addresses("web.chat.svc") == ["127.20.1.1", "127.20.1.2", "127.20.1.3"]
    for form in ("web-2.web.chat", "web-2.web.chat.svc", "WEB-2.web.chat.svc.cluster.local."):
        assert hosts.addresses(form) == ["127.20.1.2"]
    assert hosts.addresses("x.web.chat.svc") == []
    assert hosts.addresses("example.com") == []
    assert hosts.located("http://web-2.web.chat.svc:8000/v1") == "http://127.20.1.2:8000/v1"
    assert hosts.located("https://example.com/v1") == "https://example.com/v1"
    assert 'resolve = "web-2.web.chat.svc:8000:127.20.1.2"\n' in curl_text(found)
    path.write_text("")
    assert hosts.addresses("web.chat.svc") == []
    path.unlink()
    assert hosts.addresses("web.chat.svc") == []


def test_the_file_is_found_by_the_variable_or_beside_the_kubeconfig(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MODELYARD_HOSTS", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    assert HostsFile.found() is None
    (tmp_path / "hosts").write_text("127.20.128.7 web.chat.svc\n")
    found = HostsFile.found()
    assert found is not None
    assert found.addresses("web.chat.svc") == ["127.20.128.7"]
    (tmp_path / "other").write_text("127.20.128.9 web.chat.svc # named\n")
    monkeypatch.setenv("MODELYARD_HOSTS", str(tmp_path / "other"))
    found = HostsFile.found()
    assert found is not None
    assert found.addresses("web.chat.svc") == ["127.20.128.9"]
