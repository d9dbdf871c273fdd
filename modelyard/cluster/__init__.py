"""The one place that talks to the Kubernetes API: typed errors, explicit timeouts, and watches that resume.

Begin with ``Cluster``. Built on the official ``kubernetes`` package's asyncio client.
"""

from modelyard.cluster.client import Cluster
from modelyard.cluster.connection import ClusterSettings
from modelyard.cluster.errors import (
    AlreadyExists,
    Cause,
    ClusterError,
    Conflict,
    Forbidden,
    Invalid,
    NotConfigured,
    NotFound,
    TooOld,
    Unauthorized,
    Unavailable,
    UnknownKind,
)
from modelyard.cluster.lease import Lease
from modelyard.cluster.objects import Object, ObjectList, ScaleSubresource, WatchEvent
from modelyard.objects.kinds import (
    CONFIG_MAPS,
    CRDS,
    DEPLOYMENTS,
    EVENTS,
    HPAS,
    LEASES,
    NAMESPACES,
    NODES,
    PODS,
    REPLICA_SETS,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    STATEFUL_SETS,
    ResourceType,
)

__all__ = [
    "CONFIG_MAPS",
    "CRDS",
    "DEPLOYMENTS",
    "EVENTS",
    "HPAS",
    "LEASES",
    "NAMESPACES",
    "NODES",
    "PODS",
    "REPLICA_SETS",
    "SECRETS",
    "SERVICES",
    "SERVICE_ACCOUNTS",
    "STATEFUL_SETS",
    "AlreadyExists",
    "Cause",
    "Cluster",
    "ClusterError",
    "ClusterSettings",
    "Conflict",
    "Forbidden",
    "Invalid",
    "Lease",
    "NotConfigured",
    "NotFound",
    "Object",
    "ObjectList",
    "ResourceType",
    "ScaleSubresource",
    "TooOld",
    "Unauthorized",
    "Unavailable",
    "UnknownKind",
    "WatchEvent",
]
