"""The one place that talks to the Kubernetes API: typed errors, explicit timeouts, and watches that resume.

Begin with ``Cluster``. Built on the official ``kubernetes`` package's asyncio client.
"""

from modelyard.cluster.client import Cluster as Cluster
from modelyard.cluster.connection import ClusterSettings as ClusterSettings
from modelyard.cluster.errors import (
    WRITE_ATTEMPTS as WRITE_ATTEMPTS,
    AlreadyExists as AlreadyExists,
    ClusterError as ClusterError,
    Conflict as Conflict,
    Forbidden as Forbidden,
    Invalid as Invalid,
    NotConfigured as NotConfigured,
    NotFound as NotFound,
    TooOld as TooOld,
    Unauthorized as Unauthorized,
    Unavailable as Unavailable,
    UnknownKind as UnknownKind,
)
from modelyard.cluster.holder import Holder as Holder
from modelyard.cluster.lease import Lease as Lease, standby_name as standby_name
from modelyard.cluster.objects import (
    Object as Object,
    ObjectList as ObjectList,
    ScaleSubresource as ScaleSubresource,
    WatchEvent as WatchEvent,
)
from modelyard.cluster.renewals import Renewal as Renewal, RenewalMonitor as RenewalMonitor
from modelyard.objects.kinds import (
    CONFIG_MAPS as CONFIG_MAPS,
    CRDS as CRDS,
    DEPLOYMENTS as DEPLOYMENTS,
    EVENTS as EVENTS,
    HPAS as HPAS,
    JOBS as JOBS,
    LEASES as LEASES,
    NAMESPACES as NAMESPACES,
    NODES as NODES,
    PERSISTENT_VOLUME_CLAIMS as PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES as PERSISTENT_VOLUMES,
    PODS as PODS,
    REPLICA_SETS as REPLICA_SETS,
    SECRETS as SECRETS,
    SERVICE_ACCOUNTS as SERVICE_ACCOUNTS,
    SERVICES as SERVICES,
    STATEFUL_SETS as STATEFUL_SETS,
    ResourceType as ResourceType,
)
