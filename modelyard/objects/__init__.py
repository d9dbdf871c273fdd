"""Kubernetes values that every room speaks, and how they are read: no client, no clock."""

from modelyard.objects.kinds import ResourceType as ResourceType
from modelyard.objects.values import (
    Condition as Condition,
    Key as Key,
    Namespace as Namespace,
    Node as Node,
    Notice as Notice,
    OwnerRef as OwnerRef,
    Pod as Pod,
    ReplicaLimits as ReplicaLimits,
    TargetRef as TargetRef,
    Workload as Workload,
    WorkloadId as WorkloadId,
)
