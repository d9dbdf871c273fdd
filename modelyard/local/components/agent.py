"""The node agent's settings file and command line."""

from __future__ import annotations

import sys

from modelyard import __version__
from modelyard.local.agent.settings import AgentSettings
from modelyard.local.components.health import http_ok
from modelyard.local.components.spec import ClusterContext, ComponentSpec
from modelyard.local.files import write_atomically
from modelyard.local.processes import python_path_environment
from modelyard.local.settings import Component


def agent(cluster: ClusterContext) -> ComponentSpec:
    """Write the agent's settings and give the command line."""
    settings = AgentSettings(
        kubeconfig=cluster.paths.kubeconfigs / "agent",
        nodes=cluster.settings.nodes,
        address_prefix=cluster.pod_prefix,
        records=cluster.paths.agent,
        logs=cluster.paths.logs / "pods",
        health_port=cluster.ports.agent,
        backoff_scale=cluster.settings.backoff_scale,
    )
    write_atomically(cluster.paths.agent_config, settings.model_dump_json(indent=1))
    return ComponentSpec(
        Component.AGENT,
        [
            sys.executable,
            "-m",
            "modelyard.local.agent",
            str(cluster.paths.agent_config),
            *cluster.extra(Component.AGENT),
        ],
        http_ok(f"http://127.0.0.1:{cluster.ports.agent}/readyz"),
        env=python_path_environment(),
        version=__version__,
    )
