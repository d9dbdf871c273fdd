"""The control plane as processes: what comes up, what comes back after a kill, what is left after a stop."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from cluster_faults import kill, own, wait_for_restart

from modelyard.cluster import Cluster
from modelyard.local.paths import LocalClusterError
from modelyard.local.settings import Component, StackSettings
from modelyard.local.stack import LocalStack
from modelyard.objects.kinds import SERVICE_ACCOUNTS

pytestmark = pytest.mark.integration


async def test_namespaces_get_a_service_account(control_plane_cluster: Cluster, namespace: str) -> None:
    async for event in control_plane_cluster.watch(SERVICE_ACCOUNTS, namespace):
        if event.kind == "ADDED":
            assert event.object["metadata"]["name"] == "default"
            break


async def test_the_four_are_reported_with_address_and_version(control_plane: LocalStack) -> None:
    state = control_plane.state
    assert state is not None
    assert state.phase == "running"
    assert list(state.components) == ["etcd", "apiserver", "controller-manager", "scheduler"]
    for name, component in state.components.items():
        assert component.phase == "ready", name
        assert component.version.count(".") == 2
        assert "//127.0.0.1:" in component.address


async def test_a_stack_of_one_component_is_restarted_after_a_kill(tmp_path: Path) -> None:
    settings = StackSettings(components=[Component.ETCD])
    async with LocalStack(settings, name="one", directory=tmp_path / "one") as stack:
        killed = kill(stack, Component.ETCD)
        await asyncio.to_thread(wait_for_restart, stack, Component.ETCD, 0)
        after = own(stack, Component.ETCD)
        assert after.restarts == 1
        assert after.process is not None
        assert after.process.alive()
        assert after.process.pid != killed
        with pytest.raises(LocalClusterError, match="has no prometheus"):
            _ = stack.prometheus_url
    assert not stack.running
    assert not stack.paths.root.exists()
