"""Other latency targets: the ConfigMaps of the service classes, rewritten."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import yaml

from modelyard.autoscaling.configuration import FleetSettings, read_document
from modelyard.autoscaling.fleet import Fleet
from modelyard.autoscaling.variants import number
from modelyard.autoscaling.what_if.errors import WhatIfError, listed
from modelyard.objects import Key

FIELDS = {"TTFT": ("slo-ttft",), "ITL": ("slo-tpot", "slo-itl")}
"""Fields of a class's entry, by what they limit; the first one counts."""


class LatencyTarget(NamedTuple):
    """A target in milliseconds, or a share of the one that is set."""

    milliseconds: float | None = None
    factor: float = 1.0


def with_targets(
    fleet: Fleet, settings: FleetSettings, kind: str, subject: str, target: LatencyTarget
) -> tuple[Fleet, list[str]]:
    """The fleet with another ``TTFT`` or ``ITL`` in one class, or in all (``""``) that have it. ``WhatIfError``."""
    option = f"--slo-{kind.lower()}"
    classes: list[str] = []
    changed: dict[Key, Mapping[str, str]] = {}
    hits = 0
    for key in _maps(fleet, settings):
        data = dict(fleet.config_maps[key])
        for entry in read_document(key, data, settings).entries:
            name, entries = str(entry.fields.get("name") or entry.key), entry.fields.get("data")
            if not isinstance(entries, list):
                continue
            classes.append(name)
            if subject and subject not in (entry.key, name):
                continue
            rewritten = [_entry(one, kind, target) if isinstance(one, dict) else one for one in entries]
            data[entry.key] = yaml.safe_dump({**entry.fields, "data": rewritten}, sort_keys=False)
            hits += 1
        changed[key] = data
    if not hits:
        wrong = "no such service class" if subject else "no variant in SLO form has a service class"
        raise WhatIfError(f"{option} {subject or ''}: {wrong}; there are: {listed(classes)}".replace(" :", ":"))
    value = (
        f"{target.milliseconds:g} ms" if target.milliseconds is not None else f"{target.factor:.4g} times what is set"
    )
    told = f"{kind} target {value} in {f'service class {subject}' if subject else 'every service class'}"
    return replace(fleet, config_maps={**fleet.config_maps, **changed}), [told]


def _maps(fleet: Fleet, settings: FleetSettings) -> list[Key]:
    central = settings.controller_namespace
    found = {
        Key(namespace, name)
        for variant in fleet.variants
        if variant.slo is not None
        for namespace in (variant.key.namespace, central)
        for name in (variant.slo.class_name, settings.service_class_config_map)
    }
    return sorted(key for key in found if key in fleet.config_maps)


def _entry(one: Mapping[str, Any], kind: str, target: LatencyTarget) -> dict[str, Any]:
    names = FIELDS[kind]
    value = target.milliseconds
    if value is None:
        before = next((found for name in names if (found := number(one.get(name))) is not None), None)
        if not before:
            return dict(one)
        value = before * target.factor
    return {**{name: found for name, found in one.items() if name not in names}, names[0]: value}
