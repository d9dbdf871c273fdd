"""Server-side apply, with two repairs that the server does not make.

* Replicas: a manager that stops applying ``spec.replicas`` gives the field up, and where the server does not record
  that a scaler took it over (before 1.22) it falls back to 1. So the field is first handed to a second manager.
* Unknown fields: servers before 1.25 ignore ``fieldValidation`` and drop them silently. So what was sent is compared
  with what was stored, and a loss is logged.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterator
from typing import Any

from modelyard.cluster.discovery import Discovery
from modelyard.cluster.errors import Conflict, Invalid, NotFound
from modelyard.cluster.objects import Object, metadata, resource_version
from modelyard.cluster.transport import APPLY_PATCH, ApiRequest, Transport
from modelyard.objects.kinds import ResourceType

logger = logging.getLogger(__name__)

_HANDOVER_ATTEMPTS = 5
_WRITE_ONLY = {"stringData"}
"""Fields that the server takes in but never shows."""


async def apply(
    transport: Transport,
    discovery: Discovery,
    body: Object,
    *,
    force: bool,
    field_manager: str,
    subresource: str | None,
    dry_run: bool,
    timeout: float | None,
) -> Object:
    """See ``Cluster.apply``."""
    kind, name, namespace = body.get("kind"), metadata(body).get("name"), metadata(body).get("namespace")
    if not kind or not name or not body.get("apiVersion"):
        raise Invalid(
            "the manifest needs apiVersion, kind and metadata.name",
            verb="apply",
            object=f"{kind or 'object'} {name or 'without a name'}",
            reason="Incomplete",
        )
    type = await discovery.resolve(body["apiVersion"], kind)
    if type.namespaced and not namespace:
        raise Invalid("metadata.namespace is missing", verb="apply", object=f"{kind} {name}", reason="NoNamespace")
    if not type.namespaced:
        namespace = None

    if (
        subresource is None
        and not dry_run
        and "replicas" not in (body.get("spec") or {})
        and await discovery.has_subresource(type, "scale")
    ):
        await _hand_over_replicas(transport, type, name, namespace, field_manager, timeout)

    stored = await _send(transport, type, body, field_manager, force, subresource, dry_run, timeout)
    warn_of_dropped_fields(body, stored, type.describe(namespace, name))
    return stored


async def _send(
    transport: Transport,
    type: ResourceType,
    body: Object,
    field_manager: str,
    force: bool,
    subresource: str | None = None,
    dry_run: bool = False,
    timeout: float | None = None,
) -> Object:
    name, namespace = metadata(body)["name"], metadata(body).get("namespace")
    query = {"fieldManager": field_manager, "force": str(force).lower(), "fieldValidation": "Strict"}
    if dry_run:
        query["dryRun"] = "All"
    return await transport.json(
        ApiRequest(
            "PATCH",
            type.path(namespace, name, subresource),
            "apply",
            type.describe(namespace, name, subresource),
            query,
            # The type may be served in another version than the manifest names (a legacy one).
            {**body, "apiVersion": type.api_version},
            APPLY_PATCH,
            timeout=timeout,
        )
    )


async def _hand_over_replicas(
    transport: Transport,
    type: ResourceType,
    name: str,
    namespace: str | None,
    field_manager: str,
    timeout: float | None,
) -> None:
    """If only ``field_manager`` owns ``spec.replicas``, let a second manager own its present value too."""
    for attempt in range(1, _HANDOVER_ATTEMPTS + 1):
        try:
            path, shown = type.path(namespace, name), type.describe(namespace, name)
            live = await transport.json(ApiRequest("GET", path, "get", shown, timeout=timeout))
        except NotFound:
            return
        owners = {(entry.get("manager"), entry.get("operation")) for entry in _owners_of_replicas(live)}
        if owners != {(field_manager, "Apply")}:
            return
        claim = {
            "apiVersion": type.api_version,
            "kind": type.kind,
            "metadata": {"name": name, "resourceVersion": resource_version(live)}
            | ({"namespace": namespace} if namespace else {}),
            "spec": {"replicas": live["spec"]["replicas"]},
        }
        try:
            await _send(transport, type, claim, f"{field_manager}-replicas", force=True, timeout=timeout)
            return
        except Conflict:  # scaled or otherwise changed since it was read
            if attempt == _HANDOVER_ATTEMPTS:
                raise
            await asyncio.sleep(random.uniform(0, 0.02 * 2**attempt))


def _owners_of_replicas(obj: Object) -> Iterator[Object]:
    for entry in metadata(obj).get("managedFields") or ():
        if "f:replicas" in ((entry.get("fieldsV1") or {}).get("f:spec") or {}):
            yield entry


def warn_of_dropped_fields(sent: Object, stored: Object, shown: str) -> None:
    """Log the fields of ``sent`` that the server did not store: it is too old to know them."""
    places: dict[str, list[str]] = {}
    for path in dropped_fields({key: sent[key] for key in sent if key not in ("metadata", "status")}, stored):
        places.setdefault(path.rpartition(".")[2], []).append(path)
    if places:
        # A schema can lose the same field in dozens of places.
        dropped = (where[0] if len(where) == 1 else f"{name} ({len(where)} times)" for name, where in places.items())
        logger.warning("%s: the server dropped fields that it does not know: %s", shown, ", ".join(dropped))


def dropped_fields(sent: Any, stored: Any, path: str = "") -> Iterator[str]:
    """Paths of non-empty values in ``sent`` that have no counterpart in ``stored``.

    Empty and zero values are passed over (the API leaves them out), and so are lists whose length changed.
    """
    if isinstance(sent, dict) and isinstance(stored, dict):
        for key, value in sent.items():
            here = f"{path}.{key}" if path else str(key)
            if key in stored:
                yield from dropped_fields(value, stored[key], here)
            elif not _is_empty(value) and key not in _WRITE_ONLY:
                yield here
    elif isinstance(sent, list) and isinstance(stored, list) and len(sent) == len(stored):
        for index, (left, right) in enumerate(zip(sent, stored, strict=True)):
            yield from dropped_fields(left, right, f"{path}[{index}]")


def _is_empty(value: Any) -> bool:
    """Whether nothing but zeros and emptiness is in it."""
    if isinstance(value, dict):
        return all(_is_empty(inner) for inner in value.values())
    if isinstance(value, list):
        return all(_is_empty(inner) for inner in value)
    return not value
