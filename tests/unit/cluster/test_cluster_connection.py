"""Where the configuration is looked for, and what is said when it is not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from modelyard.cluster import Cluster, ClusterSettings, NotConfigured


def kubeconfig(path: Path, server: str, **user: Any) -> Path:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [
            {"name": "first", "context": {"cluster": "c", "user": "u"}},
            {"name": "nowhere", "context": {"cluster": "missing", "user": "u"}},
        ],
        "current-context": "first",
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.fixture(autouse=True)
def nothing_around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


async def server_of(settings: ClusterSettings | None = None) -> str:
    async with Cluster.connect(settings) as cluster:
        return cluster.transport.server


async def test_nothing_configured_says_what_was_tried(tmp_path: Path) -> None:
    with pytest.raises(NotConfigured) as caught:
        await server_of()
    for part in ("KUBECONFIG (not set)", str(tmp_path / "home/.kube/config"), "service account", "name a kubeconfig"):
        assert part in str(caught.value)


async def test_the_order_of_the_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kubeconfig(tmp_path / "home/.kube/config", "http://default")
    assert await server_of() == "http://default"
    variable = kubeconfig(tmp_path / "variable", "http://variable")
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'missing'}:{variable}")
    assert await server_of() == "http://variable"
    explicit = kubeconfig(tmp_path / "explicit", "http://explicit")
    assert await server_of(ClusterSettings(kubeconfig=explicit)) == "http://explicit"


async def test_a_pod_uses_its_service_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    with pytest.raises(NotConfigured, match=r"service account of the pod \(Service token file does not exist\)"):
        await server_of()


@pytest.mark.parametrize("content", ["", "a: [", "[]", "clusters: 1", "current-context: gone"])
async def test_a_damaged_kubeconfig_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "broken"
    path.write_text(content)
    with pytest.raises(NotConfigured, match=r"kubeconfig .*broken is not usable: .*kubectl config view"):
        await server_of(ClusterSettings(kubeconfig=path))


async def test_paths_and_contexts_that_do_not_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotConfigured, match=r"missing of the settings does not exist"):
        await server_of(ClusterSettings(kubeconfig=tmp_path / "missing"))
    path = kubeconfig(tmp_path / "k", "http://x")
    for context in ("other", "nowhere"):
        with pytest.raises(NotConfigured, match="is not usable"):
            await server_of(ClusterSettings(kubeconfig=path, context=context))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
    with pytest.raises(NotConfigured, match="names no existing file"):
        await server_of()


async def test_certificates_that_are_none(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "k", "https://x", **{"client-certificate-data": "eA==", "client-key-data": "eA=="})
    with pytest.raises(NotConfigured, match="certificates are not usable"):
        await server_of(ClusterSettings(kubeconfig=path))
