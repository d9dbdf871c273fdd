"""Pods as Prometheus's HTTP service discovery wants them; served by the agent to a Prometheus that cannot ask itself.

Some builds of Prometheus (Debian's among them) are compiled without Kubernetes discovery. For these the agent, which
watches all pods anyway, gives the same targets with the same meta labels as `kubernetes_sd_configs` with role pod
(https://prometheus.io/docs/prometheus/latest/configuration/configuration/#pod), so one relabeling serves both.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from modelyard.cluster import Object

_META = "__meta_kubernetes_"


def target_groups(pods: Iterable[Object]) -> list[Object]:
    """For every pod with an address, one target per declared container port (or per container without ports)."""
    return [group for pod in pods for group in _groups(pod)]


def _groups(pod: Object) -> list[Object]:
    address = (pod.get("status") or {}).get("podIP")
    if not address:
        return []
    shared = _pod_labels(pod)
    groups: list[Object] = []
    for kind, init in (("containers", "false"), ("initContainers", "true")):
        for container in pod["spec"].get(kind) or []:
            own = {
                f"{_META}pod_container_name": str(container["name"]),
                f"{_META}pod_container_image": str(container.get("image", "")),
                f"{_META}pod_container_init": init,
            }
            ports = container.get("ports") or []
            if not ports:
                groups.append({"targets": [address], "labels": {**shared, **own}})
            for port in ports:
                numbered = {
                    f"{_META}pod_container_port_name": str(port.get("name", "")),
                    f"{_META}pod_container_port_number": str(port["containerPort"]),
                    f"{_META}pod_container_port_protocol": str(port.get("protocol", "TCP")),
                }
                target = f"{address}:{port['containerPort']}"
                groups.append({"targets": [target], "labels": {**shared, **own, **numbered}})
    return groups


def _pod_labels(pod: Object) -> dict[str, str]:
    metadata, status = pod["metadata"], pod.get("status") or {}
    conditions = {entry["type"]: entry["status"] for entry in status.get("conditions") or []}
    labels = {
        f"{_META}namespace": metadata["namespace"],
        f"{_META}pod_name": metadata["name"],
        f"{_META}pod_uid": metadata["uid"],
        f"{_META}pod_ip": status["podIP"],
        f"{_META}pod_host_ip": status.get("hostIP", ""),
        f"{_META}pod_node_name": pod["spec"].get("nodeName", ""),
        f"{_META}pod_phase": status.get("phase", ""),
        f"{_META}pod_ready": str(conditions.get("Ready", "unknown")).lower(),
    }
    for kind, entries in (("label", metadata.get("labels")), ("annotation", metadata.get("annotations"))):
        for name, value in (entries or {}).items():
            label = re.sub(r"[^a-zA-Z0-9_]", "_", name)
            labels[f"{_META}pod_{kind}_{label}"] = str(value)
            labels[f"{_META}pod_{kind}present_{label}"] = "true"
    for owner in metadata.get("ownerReferences") or []:
        if owner.get("controller"):
            labels[f"{_META}pod_controller_kind"] = owner["kind"]
            labels[f"{_META}pod_controller_name"] = owner["name"]
    return labels
