"""The older form of a serving runtime: one pod at its top level, and ``workers`` next to it. Pure.

The reference has both forms in one spec. The pod at the top level is the engine's (the leader's, with workers); the
container named ``ome-container`` runs the engine and all other containers are sidecars. ``engineConfig`` that describes
pods itself replaces the older form; without pods it lies on top of it.

Source: ServingRuntimePodSpec and WorkerPodSpec of ome.io/v1beta1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from modelyard.objects import few
from modelyard.resources.ome.pods import EngineSpec, RuntimePodFields

if TYPE_CHECKING:
    from modelyard.resources.ome.runtimes import ServingRuntimeSpec

MAIN: Final = "ome-container"
"""Name of the container that runs the engine."""
WORKERS: Final = "workers"
FIELDS: Final = tuple(info.alias or name for name, info in RuntimePodFields.model_fields.items())
"""Pod fields at the top level of a runtime."""
_NAMES: Final = frozenset((*RuntimePodFields.model_fields, WORKERS))
_MOST_NAMES: Final = 4
_PODS: Final = ("runner", "containers", "leader", "worker")
_MAIN_WORD = re.compile(r"(?:^|-)ome(?:-|$)", re.IGNORECASE)


def main_container(containers: Sequence[Mapping[str, Any]]) -> int:
    """Index of the engine's container: ``ome-container``, else the first with ``ome`` in its name, else the first."""
    names = [str(container.get("name") or "") for container in containers]
    if MAIN in names:
        return names.index(MAIN)
    return next((index for index, name in enumerate(names) if _MAIN_WORD.search(name)), 0)


def engine_config(spec: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the engine of a runtime, whose spec is given as JSON; ``None`` if it describes none."""
    older, engine = _older_form(spec), spec.get("engineConfig")
    if engine is None:
        return older or None
    if not older or _has_pods(engine):
        return dict(engine)
    both = [name for name in older.keys() & engine.keys() if isinstance(older[name], Mapping)]
    return {**older, **engine, **{name: {**older[name], **engine[name]} for name in both}}


def ignored_fields(spec: Mapping[str, Any]) -> list[str]:
    """Return the fields of the older form that ``engineConfig`` replaces."""
    engine = spec.get("engineConfig")
    if not isinstance(engine, Mapping) or not _has_pods(engine):
        return []
    return [name for name in (*FIELDS, WORKERS) if spec.get(name)]


def engine_spec(spec: ServingRuntimeSpec) -> EngineSpec | None:
    """Return the engine of a runtime, whichever form describes it."""
    if not spec.model_fields_set & _NAMES:
        return spec.engine_config
    engine = engine_config(_as_json(spec))
    return EngineSpec.model_validate(engine, extra="allow") if engine is not None else None


def older_form_remarks(spec: ServingRuntimeSpec) -> list[str]:
    """Return what a runtime in the older form leaves without effect."""
    if not spec.model_fields_set & _NAMES:
        return []
    remarks = []
    if ignored := ignored_fields(_as_json(spec)):
        remarks.append(replaced(ignored))
    elif spec.workers is not None and not spec.workers.size:
        remarks.append("spec.workers has no size: its groups have no worker pods")
    return remarks


REPLACED: Final = "spec.engineConfig describes the engine's pods"
"""Reason why a field of the older form has no effect."""


def replaced(fields: Sequence[str]) -> str:
    """Say that ``engineConfig`` replaces fields of the older form."""
    names = ", ".join(few([f"spec.{name}" for name in fields], _MOST_NAMES))
    return f"{names}: without effect, {REPLACED}"


def _as_json(spec: ServingRuntimeSpec) -> dict[str, Any]:
    return spec.model_dump(mode="json", by_alias=True, exclude_none=True)


def _has_pods(engine: Mapping[str, Any]) -> bool:
    return any(engine.get(name) is not None for name in _PODS)


def _older_form(spec: Mapping[str, Any]) -> dict[str, Any]:
    engine = _pod(spec, FIELDS)
    if spec.get(WORKERS) is not None:
        engine["worker"] = _pod(spec[WORKERS], (*FIELDS, "size"))
    return engine


def _pod(part: Mapping[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    """Return a pod with its runner. The runner is a name alone, so that arguments of a service follow its own."""
    pod = {name: part[name] for name in fields if part.get(name) not in (None, "", [], {})}
    if containers := pod.get("containers"):
        name = containers[main_container(containers)].get("name")
        if isinstance(name, str) and name:
            pod["runner"] = {"name": name}
    return pod
