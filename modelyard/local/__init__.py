"""A whole cluster on one machine: control plane, node agent, simulated engine, Prometheus.

`stack.LocalStack` is the way in for programs and tests, `modelyard local` (modelyard.cli.local) for people.
"""

from modelyard.local.load import ReadyPods, serve
from modelyard.local.overview import Overview, collect
from modelyard.local.paths import BinaryNotFound, LocalClusterError, home_dir, tail
from modelyard.local.processes import Startable, python_path_environment, spawn
from modelyard.local.router import ADDRESS, install
from modelyard.local.settings import CONTROL_PLANE, EVERYTHING, Component, NodeGroup, StackSettings, default_nodes
from modelyard.local.stack import LocalStack
