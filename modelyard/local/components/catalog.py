"""All components of an instance, in starting order."""

from __future__ import annotations

from collections.abc import Callable

from modelyard.local.components import agent, control_plane, prometheus
from modelyard.local.components.spec import ClusterContext, ComponentSpec
from modelyard.local.settings import Component

_BUILDERS: dict[Component, Callable[[ClusterContext], ComponentSpec]] = {
    Component.ETCD: control_plane.etcd,
    Component.APISERVER: control_plane.apiserver,
    Component.CONTROLLER_MANAGER: control_plane.controller_manager,
    Component.SCHEDULER: control_plane.scheduler,
    Component.AGENT: agent.agent,
    Component.PROMETHEUS: prometheus.prometheus,
}


def starting_order(cluster: ClusterContext) -> list[list[ComponentSpec]]:
    """Groups of components: each group starts when the one before is ready, its members at once."""
    groups = [[Component.ETCD], [Component.APISERVER]]
    groups.append([c for c in Component if c not in (Component.ETCD, Component.APISERVER)])
    wanted = set(cluster.settings.components)
    return [[_BUILDERS[c](cluster) for c in group if c in wanted] for group in groups if wanted & set(group)]
