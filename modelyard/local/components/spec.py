"""What the supervisor needs to know of a component, and what a component needs to know of its cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from modelyard.local.paths import InstancePaths
from modelyard.local.settings import Component, StackSettings
from modelyard.local.slots import Ports


@dataclass(frozen=True)
class ClusterContext:
    """One instance: its settings, files and ports."""

    name: str
    settings: StackSettings
    paths: InstancePaths
    ports: Ports
    pod_prefix: str

    def program(self, name: str) -> str:
        """Path of a program."""
        return self.settings.binaries[name]

    def extra(self, component: Component) -> list[str]:
        """The user's further flags of a component."""
        return self.settings.extra_args.get(component, [])


@dataclass(frozen=True)
class ComponentSpec:
    """How to start one component and tell whether it is ready."""

    component: Component
    argv: list[str]
    ready: Callable[[], None]
    """Returns when ready; raises `NotReady` or `OSError` otherwise. Blocking, a few seconds at most."""
    env: dict[str, str] = field(default_factory=dict)
    version: str = ""
    grace: float = 10.0
    """Seconds between SIGTERM and SIGKILL when stopping."""
