"""Report of a roll-out: planned changes, the result of each service, and its components as rows of a table. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from modelyard.objects import Key, unformatted
from modelyard.reconcile.plans import ObjectResult, Plan, ResultState
from modelyard.workloads.roll_out.rollout_state import Standing


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """Answer of a service that was asked which models it serves: the HTTP status, 0 where nothing was heard."""

    status: int = 0
    words: str = "its pods are ready; not asked from here"
    address: str = ""

    @property
    def well(self) -> bool:
        return self.status == 200

    @property
    def wrong(self) -> bool:
        """Return whether a server answers that serves no models."""
        return self.status == 404 or self.status >= 500


def service_result(
    key: Key, obj: Mapping[str, Any] | None, standing: Standing | None, well: Mapping[str, str], answer: EngineAnswer
) -> ObjectResult:
    """Return the result of a service as the API server has it (``None``: it has none).

    ``well`` are the conditions' wanted statuses. It has failed where waiting longer will not make it ready.
    """
    if obj is None:
        return ObjectResult(ResultState.GONE, f"{key} is not ready: there is no such service")
    status = obj.get("status") or {}
    conditions = {condition.get("type"): condition for condition in status.get("conditions") or ()}
    current = status.get("observedGeneration") == obj["metadata"]["generation"]
    states = [(conditions.get(name) or {}, wanted) for name, wanted in well.items()]
    bad = next((condition for condition, wanted in states if condition and condition.get("status") != wanted), None)
    behind = standing is not None and not all(component.rolled_out for component in standing.states.values())
    if not current or not well.keys() <= conditions.keys() or bad is not None or behind:
        final = current and standing is not None and standing.stuck
        reasons = filter(None, ((bad or {}).get("reason"), (bad or {}).get("message")))
        state = ResultState.FAILED if final else ResultState.PENDING
        return ObjectResult(state, ": ".join([f"{key} is not ready", *reasons]))
    if answer.well:
        return ObjectResult(ResultState.DONE, f"{key} answers at {answer.address}")
    if answer.wrong:  # it may answer a little later
        return ObjectResult(ResultState.PENDING, f"{key}: its pods are ready, but {answer.address} says {answer.words}")
    pods = f"its pods are ready; {answer.address} says {answer.words}" if answer.status else answer.words
    return ObjectResult(ResultState.DONE, f"{key}: {pods}")


def component_rows(key: Key, standing: Standing | None, answer: EngineAnswer) -> Iterator[dict[str, object]]:
    """Yield a row for each component of a service."""
    for state in standing.states.values() if standing is not None else ():
        pods = f"{state.ready_pods}/{state.wanted}"
        row: dict[str, object] = {"service": str(key), "component": state.kind, "pods": pods}
        yield row | {"reason": state.reason, "message": state.message, "answer": answer.words}


def change_lines(plan: Plan, standing: Standing | None) -> list[str]:
    """Return the plan's changes as lines of Markdown."""
    if standing is None:
        return []
    lines = [f"## {plan.subject.key}", ""]
    if standing.problem is not None:
        return [*lines, f"refused: {unformatted(str(standing.problem))}", ""]
    runtime = standing.resolved.runtime
    lines += [f"runtime: {runtime.kind} {runtime.choice.name}", ""] if runtime is not None else []
    return [*lines, *(f"- {unformatted(line)}" for line in standing.differences(plan)), ""]
