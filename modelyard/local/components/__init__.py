"""All components of an instance in starting order, and the node agent's settings file and command line."""

from __future__ import annotations

import sys
from collections.abc import Callable

from modelyard import __version__
from modelyard.local.components import control_plane, prometheus
from modelyard.local.components.spec import ClusterContext, ComponentSpec, NotReady, http_ok
from modelyard.local.paths import write_atomically
from modelyard.local.processes import python_path_environment
from modelyard.local.settings import AgentSettings, Component


def agent(cluster: ClusterContext) -> ComponentSpec:
    """Write the agent's settings and give the command line."""
    settings = AgentSettings(
        kubeconfig=cluster.paths.kubeconfigs / "agent",
        nodes=cluster.settings.nodes,
        address_prefix=cluster.pod_prefix,
        records=cluster.paths.agent,
        logs=cluster.paths.logs / "pods",
        files=cluster.paths.files,
        pki=cluster.paths.pki,
        names=cluster.paths.root,
        service_network=cluster.service_network,
        health_port=cluster.ports.agent,
        kubelet_port=cluster.ports.kubelet,
        backoff_scale=cluster.settings.backoff_scale,
    )
    write_atomically(cluster.paths.agent_config, settings.model_dump_json(indent=1))
    module = (sys.executable, "-m", "modelyard.local.agent")
    return ComponentSpec(
        Component.AGENT,
        [*module, str(cluster.paths.agent_config), *cluster.extra(Component.AGENT)],
        http_ok(f"http://127.0.0.1:{cluster.ports.agent}/readyz"),
        env=python_path_environment(),
        version=__version__,
    )


_BUILDERS: dict[Component, Callable[[ClusterContext], ComponentSpec]] = {
    Component.ETCD: control_plane.etcd,
    Component.APISERVER: control_plane.apiserver,
    Component.CONTROLLER_MANAGER: control_plane.controller_manager,
    Component.SCHEDULER: control_plane.scheduler,
    Component.AGENT: agent,
    Component.PROMETHEUS: prometheus.prometheus,
}


def starting_order(cluster: ClusterContext) -> list[list[ComponentSpec]]:
    """Groups of components: each group starts when the one before is ready, its members at once."""
    groups = [[Component.ETCD], [Component.APISERVER]]
    groups.append([c for c in Component if c not in (Component.ETCD, Component.APISERVER)])
    wanted = set(cluster.settings.components)
    return [[_BUILDERS[c](cluster) for c in group if c in wanted] for group in groups if wanted & set(group)]
