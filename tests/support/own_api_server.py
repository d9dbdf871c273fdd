"""etcd and kube-apiserver of these tests' own, because they are killed here, and a custom resource to play with."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from cluster_manifests import WIDGET_CRD, WIDGETS
from tcp_proxy import TcpProxy

from modelyard.cluster import Cluster, ClusterSettings, UnknownKind
from modelyard.local.settings import Component, StackSettings
from modelyard.local.stack import LocalStack
from modelyard.objects.kinds import NAMESPACES


@pytest.fixture(scope="session")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    """etcd and kube-apiserver, no controllers."""
    settings = StackSettings(components=[Component.ETCD, Component.APISERVER])
    with LocalStack(settings, name="cluster-tests", directory=tmp_path_factory.mktemp("cluster-tests")) as stack:
        yield stack


@pytest.fixture(scope="session")
async def cluster(api_server: LocalStack) -> AsyncIterator[Cluster]:
    """A direct connection, with the Widget CRD served."""
    async with Cluster.connect(ClusterSettings(kubeconfig=api_server.kubeconfig, discovery_interval=0.1)) as cluster:
        await cluster.apply(WIDGET_CRD)
        async with asyncio.timeout(120):
            while True:
                with suppress(UnknownKind):
                    await cluster.resolve(WIDGETS.api_version, WIDGETS.kind)
                    break
                await asyncio.sleep(0.1)
        yield cluster


@pytest.fixture
async def place(cluster: Cluster) -> str:
    """A fresh namespace. (Without a namespace controller it is never deleted; the server is thrown away.)"""
    name = f"t-{uuid.uuid4().hex[:8]}"
    await cluster.create(NAMESPACES, {"metadata": {"name": name}})
    return name


@pytest.fixture
async def proxy(api_server: LocalStack) -> AsyncIterator[TcpProxy]:
    async with TcpProxy(api_server.server) as proxy:
        yield proxy


@pytest.fixture
async def proxied(api_server: LocalStack, cluster: Cluster, proxy: TcpProxy, tmp_path: Path) -> AsyncIterator[Cluster]:
    """A connection through ``proxy``."""
    settings = ClusterSettings(kubeconfig=proxy.kubeconfig(api_server.kubeconfig, tmp_path))
    async with Cluster.connect(settings) as proxied:
        yield proxied
