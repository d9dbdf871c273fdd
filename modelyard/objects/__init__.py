"""Kubernetes values that every room speaks, and how they are read: no client, no clock."""

from modelyard.objects.kinds import ResourceType
from modelyard.objects.values import (
    Condition,
    Key,
    Namespace,
    Node,
    Notice,
    OwnerRef,
    Pod,
    ReplicaLimits,
    TargetRef,
    Workload,
    WorkloadId,
)
