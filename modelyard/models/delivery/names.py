"""What a model is called where others look for it: node labels and the entries of node reports. Pure.

The names are the published ones (OME), shortened so that Kubernetes takes them; who knows the name can find the label.
"""

from __future__ import annotations

import hashlib

from modelyard.objects import LONGEST_NAME, Key, ResourceType
from modelyard.resources.ome import BaseModel, ClusterBaseModel, FineTunedWeight

BASE_MODELS = ResourceType.of_resource(BaseModel)
CLUSTER_BASE_MODELS = ResourceType.of_resource(ClusterBaseModel)
FINE_TUNED_WEIGHTS = ResourceType.of_resource(FineTunedWeight)
KINDS = (BASE_MODELS, CLUSTER_BASE_MODELS, FINE_TUNED_WEIGHTS)


def base_models(namespace: str | None) -> ResourceType:
    """The kind of the base models of a namespace, or of those at cluster scope."""
    return BASE_MODELS if namespace else CLUSTER_BASE_MODELS


PREFIX = "models.ome.io/"
REPORT_LABEL = "models.ome/basemodel-status"
KEEP_LABEL = "models.ome/reserve-model-artifact"
_LABEL = 49
"""Characters of a label's name that are used; the published limit, though Kubernetes allows 63."""
_NAMESPACE = 8


def shortened(text: str, most: int) -> str:
    """The text, or of a longer one 8 hex digits of its SHA-256, a dash and its end."""
    if len(text) <= most:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return digest[:most] if most <= len(digest) + 1 else f"{digest}-{text[-(most - 9) :]}"


def label_key(kind: ResourceType, key: Key) -> str:
    """The label that a node with the model carries."""
    return PREFIX + _named(kind, key, _LABEL)


def entry_key(kind: ResourceType, key: Key) -> str:
    """The model's entry in the report of a node, which is also what the node's store knows it by."""
    return _named(kind, key, LONGEST_NAME)


def finalizer(kind: ResourceType) -> str:
    """The published finalizer of the kind: it is on objects that another controller made."""
    return f"{kind.plural}.ome.io/finalizer"


def identifier(kind: ResourceType, key: Key) -> str:
    """A short name that no other object has, for labels and names of what is made for it."""
    return hashlib.sha256(f"{kind.kind}/{key.namespace}/{key.name}".encode()).hexdigest()[:16]


def _named(kind: ResourceType, key: Key, most: int) -> str:
    word = kind.kind.lower()
    if not kind.namespaced:
        return f"{word}.{shortened(key.name, most - len(word) - 1)}"
    room = most - len(word) - 2
    namespace, name = key
    if len(namespace) + len(name) > room:
        if most == _LABEL and len(namespace) > _NAMESPACE:
            namespace = shortened(namespace, _NAMESPACE)
        name = shortened(name, room - len(namespace))
    return f"{namespace}.{word}.{name}"
