"""Which kinds there are and where the API serves them. Used as the first argument of nearly every ``Cluster`` call."""

from __future__ import annotations

from typing import ClassVar, NamedTuple, Protocol
from urllib.parse import quote


class Served(Protocol):
    """A Pydantic kind of ours, as far as it says where the API serves it."""

    group: ClassVar[str]
    version: ClassVar[str]
    kind: ClassVar[str]
    plural: ClassVar[str]
    namespaced: ClassVar[bool]


class ResourceType(NamedTuple):
    """A kind of object as the API serves it. An empty ``version`` means: the one the server prefers."""

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool

    @classmethod
    def of_resource(cls, resource_class: type[Served]) -> ResourceType:
        kind = resource_class
        return cls(kind.group, kind.version, kind.kind, kind.plural, kind.namespaced)

    @property
    def api_version(self) -> str:
        """``apiVersion`` of its objects, for example ``apps/v1``, or ``v1`` for the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """The URL path of a collection (``name`` unset), object or subresource; no namespace means all of them."""
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts += [part for part in (self.plural, name, subresource) if part]
        return "/" + "/".join(quote(part, safe="") for part in parts)

    def describe(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """How messages name a collection, object or subresource: ``Deployment shop/web``, ``pods in shop``."""
        if name:
            place = f"{namespace}/{name}" if self.namespaced and namespace else name
            return f"{self.kind} {place}" + (f" ({subresource})" if subresource else "")
        if not self.namespaced:
            return self.plural
        return f"{self.plural} in {namespace}" if namespace else f"{self.plural} in all namespaces"


PODS = ResourceType("", "v1", "Pod", "pods", True)
NODES = ResourceType("", "v1", "Node", "nodes", False)
NAMESPACES = ResourceType("", "v1", "Namespace", "namespaces", False)
CONFIG_MAPS = ResourceType("", "v1", "ConfigMap", "configmaps", True)
SECRETS = ResourceType("", "v1", "Secret", "secrets", True)
SERVICES = ResourceType("", "v1", "Service", "services", True)
EVENTS = ResourceType("", "v1", "Event", "events", True)
SERVICE_ACCOUNTS = ResourceType("", "v1", "ServiceAccount", "serviceaccounts", True)
PERSISTENT_VOLUMES = ResourceType("", "v1", "PersistentVolume", "persistentvolumes", False)
PERSISTENT_VOLUME_CLAIMS = ResourceType("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", True)
JOBS = ResourceType("batch", "v1", "Job", "jobs", True)
DEPLOYMENTS = ResourceType("apps", "v1", "Deployment", "deployments", True)
REPLICA_SETS = ResourceType("apps", "v1", "ReplicaSet", "replicasets", True)
STATEFUL_SETS = ResourceType("apps", "v1", "StatefulSet", "statefulsets", True)
CONTROLLER_REVISIONS = ResourceType("apps", "v1", "ControllerRevision", "controllerrevisions", True)
LEASES = ResourceType("coordination.k8s.io", "v1", "Lease", "leases", True)
CRDS = ResourceType("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", False)
HPAS = ResourceType("autoscaling", "", "HorizontalPodAutoscaler", "horizontalpodautoscalers", True)
"""autoscaling/v2 on current servers, v1 on old ones: whichever the server prefers."""
