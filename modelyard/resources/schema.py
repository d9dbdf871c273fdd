"""From a Pydantic model to the structural schema of a CRD.

Pydantic's own JSON schema is rewritten into what every API server since Kubernetes 1.20 accepts: no references, no
titles, no null alternatives, free-form objects marked as such.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

_DROPPED = ("title", "additionalProperties", "$ref", "anyOf", "allOf", "const", "default")


def structural_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The structural schema of ``model``.

    Raises:
        ValueError: the model uses something that a structural schema cannot say.
    """
    document = model.model_json_schema(by_alias=True, mode="validation")
    return _rewrite(document, document.get("$defs", {}), model.__name__)


def _rewrite(node: Mapping[str, Any], definitions: Mapping[str, Any], where: str) -> dict[str, Any]:
    node = _merged(node, definitions, where)
    schema = {key: value for key, value in node.items() if key not in (*_DROPPED, "$defs")}
    if "description" in schema:
        schema["description"] = " ".join(schema["description"].split())
    if node.get("x-kubernetes-int-or-string"):
        schema["anyOf"] = node["anyOf"]
    elif any(option.get("type") or option.get("$ref") for option in node.get("anyOf", ())):
        raise ValueError(f"{where}: alternatives of type cannot be said in a structural schema")
    elif "anyOf" in node:
        schema["anyOf"] = node["anyOf"]
    if "const" in node:
        schema["enum"] = [node["const"]]
    if node.get("default") is not None:
        schema["default"] = node["default"]
    extra = node.get("additionalProperties")
    if isinstance(extra, Mapping):
        schema["additionalProperties"] = _rewrite(extra, definitions, f"{where}{{}}")
    elif extra is True:
        schema["x-kubernetes-preserve-unknown-fields"] = True
    if "items" in node:
        schema["items"] = _rewrite(node["items"], definitions, f"{where}[]")
    if "properties" in node:
        schema["properties"] = {
            name: _rewrite(child, definitions, f"{where}.{name}") for name, child in node["properties"].items()
        }
    if "type" not in schema and not schema.get("x-kubernetes-int-or-string"):
        raise ValueError(f"{where}: has no type")
    if "exclusiveMinimum" in schema or "exclusiveMaximum" in schema:
        raise ValueError(f"{where}: use ge and le, CRDs write exclusive bounds differently")
    return schema


def _merged(node: Mapping[str, Any], definitions: Mapping[str, Any], where: str) -> dict[str, Any]:
    """``node`` with its reference resolved and its null alternative gone; what the field itself says wins."""
    node = dict(node)
    if "$ref" in node:
        target = definitions[node.pop("$ref").removeprefix("#/$defs/")]
        return {**_merged(target, definitions, where), **node}
    options = node.get("anyOf")
    if options and {"type": "null"} in options:
        rest = [option for option in options if option != {"type": "null"}]
        if len(rest) != 1 and not node.get("x-kubernetes-int-or-string"):
            raise ValueError(f"{where}: alternatives of type cannot be said in a structural schema")
        del node["anyOf"]
        return {**_merged(rest[0], definitions, where), **node}
    return node
