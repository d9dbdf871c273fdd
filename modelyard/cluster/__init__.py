"""The one place that talks to the Kubernetes API: typed errors, explicit timeouts, and watches that resume.

Begin with ``Cluster``. Built on the official ``kubernetes`` package's asyncio client.
"""

from modelyard.cluster.client import Cluster
from modelyard.cluster.connection import ClusterSettings, is_loopback
from modelyard.cluster.crd_install import crd_differences, install_crds
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
from modelyard.cluster.objects import UNREAD, Object, ObjectList, ScaleSubresource, WatchEvent
from modelyard.cluster.renewals import Renewal, RenewalMonitor
from modelyard.cluster.transport import ApiRequest
from modelyard.cluster.watching import Watch
