"""Condition of a service about its fine-tuned weights: which of them serve, and why others do not. Pure.

What serves is read from the command lines of the workloads that are ready, not from what is asked for: so it is right
for a service that is refused and keeps what runs, and for one whose update was rolled back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from modelyard.objects import Condition, few
from modelyard.workloads.rendering import Body, Note, Refused, Rendered, loaded, loads_itself, names, subject
from modelyard.workloads.roll_out.canaries import is_canary
from modelyard.workloads.roll_out.rollout_state import Standing
from modelyard.workloads.roll_out.standing import is_workload

WEIGHTS_READY: Final = "FineTunedWeightsReady"
_NAMED: Final = 20


def weights_ready(standing: Standing, latest: Condition) -> Condition | None:
    """Return the condition of a service's weights, ``None`` without. ``latest``: whether what is asked for runs."""
    named, problem, result = standing.resolved.named.weights, standing.problem, standing.result
    if not named:
        return None
    notes = result.notes if isinstance(result, Rendered) else ()
    holding = [state for state in standing.states.values() if state.kind != names.ROUTER]
    current = latest.status == "True" and problem is None
    serving: Sequence[str] = ()
    if holding and all(state.ready and state.rolled_out for state in holding):
        merged = any(offer.served.merged for offer in standing.resolved.weights)
        own = (one for one in standing.there.values() if one.owner == standing.service.subject.uid and is_workload(one))
        bodies = [one.body for one in own if one.component != names.ROUTER and not is_canary(one.body)]
        serving = _serving(named, merged, bodies, current)
    missing = {name: _reason(name, place, problem, notes, latest) for place, name in enumerate(named)}
    missing = {name: why for name, why in missing.items() if name not in serving}
    served = f"served: {', '.join(few(serving, _NAMED))}" if serving else ""
    if not missing:
        return Condition(WEIGHTS_READY, "True", "WeightsServed", served)
    by_text: dict[str, list[str]] = {}
    for name, (_, text) in missing.items():
        by_text.setdefault(text, []).append(name)
    parts = [f"not served: {', '.join(few(listed, _NAMED))}: {text}" for text, listed in by_text.items()]
    reason = next(iter(missing.values()))[0]
    return Condition(WEIGHTS_READY, "False", reason, "; ".join(filter(None, (served, *parts))))


def _reason(
    name: str, place: int, problem: Refused | None, notes: Iterable[Note], latest: Condition
) -> tuple[str, str]:
    each = problem.each() if problem is not None else ()
    own = [refused for refused in each if refused.field.endswith(f"fineTunedWeights[{place}]")]
    if own:
        return own[0].reason, str(own[0])
    note = next((note for note in notes if note.message.startswith(subject(name))), None)
    if note is not None:
        return note.reason, note.message.removeprefix(subject(name))
    if latest.status == "True" and latest.reason != "ChangesHeld":
        return "NotLoaded", "the engine's command line does not load them"
    return latest.reason, latest.message


def _serving(named: Sequence[str], merged: bool, workloads: Sequence[Body], current: bool) -> list[str]:
    """Return the names that every component's workload serves. ``current``: the workloads are as asked for."""
    if not workloads:
        return []
    if merged:
        return list(named) if current else []
    components: dict[str, set[str]] = {}
    for body in workloads:
        component = (body["metadata"].get("labels") or {}).get(names.COMPONENT, "")
        components.setdefault(component, set()).update(_loaded(body, named[:1] if current else ()))
    return [name for name in named if all(name in adapters for adapters in components.values())]


def _loaded(body: Body, first: Sequence[str]) -> Iterator[str]:
    """Yield the adapters of a workload's pods; ``first`` are those that a runtime loads by the variable for them."""
    for template in _templates(body):
        for container in template.get("containers") or ():
            yield from loaded(container)
            # The variable itself is ours, and says nothing.
            own = [one for one in container.get("env") or () if not str(one.get("value") or "").startswith("/opt/ml/")]
            if loads_itself({**container, "env": own}):
                yield from first


def _templates(body: Body) -> Iterator[Body]:
    spec = body.get("spec") or {}
    groups = spec.get("leaderWorkerTemplate") or {}
    parts = (spec, spec.get("headGroupSpec") or {}, *(spec.get("workerGroupSpecs") or ()))
    templates = [part.get("template") for part in parts]
    templates += [groups.get("leaderTemplate"), groups.get("workerTemplate")]
    yield from (template["spec"] for template in templates if template and template.get("spec"))
