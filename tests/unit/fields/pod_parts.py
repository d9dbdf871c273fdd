"""Fields of pods and of components, each with a value, for objects that set all of them."""

from __future__ import annotations

from typing import Any

Object = dict[str, Any]


def container(name: str, image: str = "engine:1", **more: Any) -> Object:
    """A container."""
    return {"name": name, "image": image, "ports": [{"containerPort": 8080}], **more}


SHARED: Object = {
    "volumes": [{"name": "scratch", "emptyDir": {}}],
    "nodeSelector": {"pool": "gpu"},
    "imagePullSecrets": [{"name": "registry"}],
    "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []}},
    "schedulerName": "volcano",
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "hostIPC": True,
    "dnsPolicy": "ClusterFirstWithHostNet",
    "hostNetwork": True,
}
POD: Object = {
    **SHARED,
    "initContainers": [{"name": "prepare", "image": "prepare:1"}],
    "containers": [{"name": "sidecar", "image": "sidecar:1"}],
    "ephemeralContainers": [{"name": "debug", "image": "debug:1"}],
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 90,
    "activeDeadlineSeconds": 3600,
    "serviceAccountName": "engine",
    "serviceAccount": "engine",
    "automountServiceAccountToken": True,
    "nodeName": "node-1",
    "hostPID": True,
    "shareProcessNamespace": True,
    "securityContext": {"fsGroup": 1000},
    "hostname": "engine",
    "subdomain": "engines",
    "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["cache"]}],
    "priorityClassName": "high",
    "priority": 100,
    "dnsConfig": {"searches": ["svc.example"]},
    "readinessGates": [{"conditionType": "example.com/warm"}],
    "runtimeClassName": "nvidia",
    "enableServiceLinks": True,
    "preemptionPolicy": "Never",
    "overhead": {"cpu": "250m"},
    "topologySpreadConstraints": [{"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}],
    "setHostnameAsFQDN": True,
    "os": {"name": "linux"},
    "hostUsers": False,
    "schedulingGates": [{"name": "example.com/quota"}],
    "resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu"}],
}
SCALING: Object = {
    "minReplicas": 2,
    "maxReplicas": 7,
    "scaleTarget": 55,
    "scaleMetric": "memory",
    "containerConcurrency": 16,
    "timeoutSeconds": 77,
    "canaryTrafficPercent": 25,
    "labels": {"team": "search"},
    "annotations": {"example.com/owner": "search"},
    "minAvailable": 1,
    "deploymentStrategy": {"type": "Recreate"},
}
KEDA: Object = {
    "enableKeda": True,
    "promServerAddress": "http://prometheus.monitoring:9090",
    "customPromQuery": "sum(waiting)",
    "scalingThreshold": "12",
    "scalingOperator": "GreaterThan",
    "authenticationRef": {"name": "grafana", "kind": "ClusterTriggerAuthentication"},
    "authModes": "bearer",
}


def single(**more: Any) -> Object:
    """A component of single pods with every field of a pod and of scaling."""
    return {**POD, **SCALING, "runner": container("engine"), **more}


def group(**more: Any) -> Object:
    """A component of groups of pods, with every field of a pod in leader and worker."""
    return {
        "leader": {**POD, "runner": container("leader", "leader:1")},
        "worker": {**POD, "size": 2, "runner": container("worker", "worker:1")},
        **more,
    }


def by_keda(**more: Any) -> Object:
    """A component that KEDA scales."""
    return {"runner": container("engine"), "scaleMetric": "rps", "maxUnavailable": 2, "kedaConfig": KEDA, **more}
