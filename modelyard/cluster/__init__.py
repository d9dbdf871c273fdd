"""The one place that talks to the Kubernetes API: typed errors, explicit timeouts, and watches that resume.

Begin with ``Cluster``. Built on the official ``kubernetes`` package's asyncio client.
"""

from modelyard.cluster.client import Cluster
from modelyard.cluster.connection import ClusterSettings
from modelyard.cluster.errors import (
    WRITE_ATTEMPTS,
    AlreadyExists,
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
from modelyard.cluster.holder import Holder
from modelyard.cluster.lease import Lease, standby_name
from modelyard.cluster.objects import (
    Object,
    ObjectList,
    ScaleSubresource,
    WatchEvent,
)
from modelyard.cluster.renewals import Renewal, RenewalMonitor
