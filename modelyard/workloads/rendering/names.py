"""What children are called, and the labels by which they are found. Pure."""

from __future__ import annotations

import hashlib
import re

from modelyard.objects import LONGEST_LABEL

SERVICE, COMPONENT = "ome.io/inferenceservice", "component"
"""Labels of everything made for an InferenceService: routers and scalers select by them."""
WORKER_INDEX = "leaderworkerset.sigs.k8s.io/worker-index"
"""Label of the pods of a group, 0 for the leader; LeaderWorkerSet sets it itself."""
APP = "app"
ENGINE, DECODER, ROUTER = "engine", "decoder", "router"
_WORKLOAD = 50
"""Characters of the name of what makes pods: theirs, and the hash of their revision, are made of it."""

_DNS_1035 = re.compile(r"[a-z](?:[-a-z0-9]*[a-z0-9])?\Z")
_LABEL = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?)?\Z")


def fitting(text: str, most: int = LONGEST_LABEL) -> str:
    """The text as a name that every kind takes (DNS-1035); what is no such name is told apart by 8 hex digits of its
    SHA-256, a dash and its end. A leading digit becomes ``a``."""
    if len(text) <= most and _DNS_1035.match(text):
        return text
    return _hashed(text, re.sub(r"[^a-z0-9]+", "-", text.lower()), most)


def label_value(text: str) -> str:
    """The text as the value of a label, in the same way."""
    if len(text) <= LONGEST_LABEL and _LABEL.match(text):
        return text
    return _hashed(text, re.sub(r"[^-A-Za-z0-9_.]+", "-", text), LONGEST_LABEL)


def _hashed(text: str, plain: str, most: int) -> str:
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    head = "a" + digest[1:] if digest[0].isdigit() else digest
    tail = plain[-(most - 9) :].strip("-_.")
    return f"{head}-{tail}" if tail else head


def component(service: str, kind: str) -> str:
    """Deployment, Service, autoscaler and disruption budget of a component."""
    return fitting(f"{service}-{kind}")


def group_set(component: str) -> str:
    """The LeaderWorkerSet of a component."""
    return f"lws-{fitting(component, _WORKLOAD)}"


def group_member(component: str, group: int, index: int | None = None) -> str:
    """One group of a component without LeaderWorkerSet, or one pod of it."""
    return fitting(f"{component}-{group}" if index is None else f"{component}-{group}-{index}", _WORKLOAD)


def scaled_object(component: str) -> str:
    """The KEDA ScaledObject of a component."""
    return f"scaledobject-{fitting(component, _WORKLOAD)}"


def model_config(service: str) -> str:
    """The ConfigMap that says which models a service has."""
    return f"modelconfig-{fitting(service, _WORKLOAD)}"
