"""A plan as JSON for programs.

Keys are stable, names are the records' own in camelCase, objects are named by namespace and name:

- ``at``, ``compatibility``: when and how it was decided; ``assumptions``: what was assumed, in words;
- ``records``: one per VariantAutoscaling; ``memory`` is what its annotation would hold;
- ``bindings``: one per AutoscalingPolicyBinding with ``records``, one per target, and ``blocks``:
  what holds back the next change (``code``, ``direction``, ``until``, ``text``);
- ``services``: one per InferenceService and Model: ``changes`` (lines), ``message``, ``refused``, what is ``held``;
- ``notices``, ``errors``, ``unattributedSignals``: about configuration and the tick as a whole;
- ``settled``: ``null`` unless asked for, else ``end`` (``settled``, ``moving``, ``waiting``), ``seconds`` to the last
  change, ``lookedAt`` seconds in all, ``path`` (every change of a target), and ``records`` and ``bindings`` in the end.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import orjson
from pydantic import BaseModel
from pydantic.alias_generators import to_camel

from modelyard.autoscaling.bindings import blocks, totals, units
from modelyard.autoscaling.configuration import FleetSettings
from modelyard.autoscaling.decisions import BindingDecision, Record, TickDecision, VariantDecision
from modelyard.autoscaling.fleet import BindingView
from modelyard.autoscaling.what_if import Settled

if TYPE_CHECKING:
    from modelyard.cli.plan_services import ServicePlan


def as_json(
    decision: TickDecision,
    settings: FleetSettings,
    views: Sequence[BindingView] = (),
    assumptions: Sequence[str] = (),
    settled: Settled | None = None,
    services: Sequence[ServicePlan] = (),
) -> str:
    """The whole plan. What JSON cannot say (infinity) is ``null``. ``views`` are the bindings decided on."""
    document = {
        "at": _time(decision.now),
        "compatibility": str(settings.compatibility),
        "assumptions": list(assumptions),
        "records": [_variant(one) for one in decision.variants],
        "bindings": _bindings(decision, settings, views),
        "services": [one.as_json() for one in services],
        "notices": [{"object": about, **_plain(notice)} for about, notice in decision.notices],
        "errors": list(decision.errors),
        "unattributedSignals": decision.unattributed_signals,
        "settled": None if settled is None else _settled(settled, settings, views),
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()


def _settled(settled: Settled, settings: FleetSettings, views: Sequence[BindingView]) -> dict[str, Any]:
    return {
        "end": str(settled.end),
        "seconds": settled.seconds,
        "lookedAt": settled.looked_at,
        "path": _plain(settled.path),
        "records": [_variant(one) for one in settled.last.variants],
        "bindings": _bindings(settled.last, settings, views),
    }


def _bindings(decision: TickDecision, settings: FleetSettings, views: Sequence[BindingView]) -> list[dict[str, Any]]:
    by_key = {view.key: view for view in views}
    return [_binding(one, by_key.get(one.key), settings, decision.now) for one in decision.bindings]


def _binding(one: BindingDecision, view: BindingView | None, settings: FleetSettings, now: float) -> dict[str, Any]:
    held = () if view is None else blocks(one, view, settings, now)
    told = [{**_plain(block), "until": None if block.until is None else _time(block.until)} for block in held]
    return {
        "binding": _plain(one.key),
        **_about(one),
        "records": [_record(record) for record in one.records],
        "mode": "Panic" if one.panic else "Stable",
        "message": one.message,
        "units": _plain(units(one)),
        "totals": _plain(totals(one)),
        "blocks": told,
    }


def _variant(one: VariantDecision) -> dict[str, Any]:
    return {**_about(one), **_record(one.record)}


def _about(one: VariantDecision | BindingDecision) -> dict[str, Any]:
    subject = one.subject
    return {
        "uid": subject.uid,
        "generation": subject.generation,
        "resourceVersion": subject.resource_version,
        "conditions": _plain(one.conditions),
        "notices": _plain(one.notices),
        "memory": _plain(one.memory),
    }


def _record(record: Record) -> dict[str, Any]:
    now, target, writes = _plain(record.now), _plain(record.target), _plain(record.writes)
    return {
        "variant": _plain(record.identity.key),
        "form": record.identity.form,
        "modelId": record.identity.model_id,
        "variantId": record.identity.variant_id,
        "desiredBefore": now.pop("desired"),
        "currentAlloc": now.pop("allocation"),
        **now,
        "target": target.pop("replicas"),
        **target,
        **_plain(record.why),
        "bounds": _plain(record.bounds),
        "write": writes.pop("scale"),
        **writes,
    }


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_defaults=True)
    if dataclasses.is_dataclass(value):
        return {to_camel(field.name): _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if hasattr(value, "_asdict"):
        return {to_camel(name): _plain(part) for name, part in value._asdict().items()}
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value
