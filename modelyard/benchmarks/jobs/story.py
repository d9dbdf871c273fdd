"""What is told of a BenchmarkJob: its state, what it waits for, what was measured and where the rest of it is. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from modelyard.benchmarks.jobs import storage
from modelyard.benchmarks.jobs.targets import BenchmarkTarget, Load
from modelyard.benchmarks.jobs.world import RE_RUN, Memory, RunJob, StoredBenchmark
from modelyard.benchmarks.records import MEASUREMENT, MeasuredRun, unsent_parameters
from modelyard.objects import Condition, Key, Notice, condition, counted, cut, timestamp
from modelyard.reconcile.plans import ObjectResult, Plan, ResultState, Status, status_plan
from modelyard.resources.ome import BenchmarkJobSpec

PENDING, RUNNING, COMPLETED, FAILED = "Pending", "Running", "Completed", "Failed"
ACCEPTED, DONE = "Accepted", "Completed"


@dataclass(frozen=True, slots=True)
class Here:
    """All that a plan for a BenchmarkJob knows. ``loads`` are all its runs, ``load`` the one that is due, ``job`` its
    Job; ``changed``: its spec is not what it began with; ``refused``: nothing is measured as it is."""

    one: StoredBenchmark
    memory: Memory
    loads: tuple[Load, ...] = ()
    minutes: int = 0
    load: Load | None = None
    job: RunJob | None = None
    target: BenchmarkTarget | None = None
    reason: str = ""
    message: str = ""
    changed: bool = False
    refused: bool = False

    @property
    def state(self) -> str:
        """The published one."""
        if self.memory.ended:
            return FAILED if self.memory.failed else COMPLETED
        if self.memory.began:
            return RUNNING
        return FAILED if self.refused else PENDING

    @property
    def longest(self) -> str:
        """How long all of it takes at most."""
        minutes = len(self.loads) * self.minutes
        time = counted(minutes, "minute") if minutes < 120 else f"{minutes / 60:.1f} hours"
        return (
            f"{counted(len(self.loads), 'run')} of at most {counted(self.minutes, 'minute')}, one after the other:"
            f" {time} at most"
        )


def told(here: Here, now: float) -> Plan:
    """A plan with the status as it should be."""
    memory, stored = here.memory, here.one.status
    state, subject = here.state, here.one.subject
    failure = memory.failed if memory.ended else here.message if state == FAILED else ""
    fields: dict[str, Any] = {
        "state": state,
        "startTime": timestamp(memory.began) if memory.began else None,
        "completionTime": _completed(here, now),
        "failureMessage": failure or None,
        "details": cut(details(here), 16 * 1024) or None,
        "observedGeneration": subject.generation,
    }
    fields = {name: value for name, value in fields.items() if value is not None or stored.get(name) is not None}
    conditions = _conditions(here)
    news = partial(_news, here, state, conditions)
    plan = status_plan(subject, conditions[-1], Status(fields, conditions), stored, now, news)
    if plan.status is None:
        return plan
    return replace(plan, status=replace(plan.status, fields={**fields, "lastReconcileTime": timestamp(now)}))


def _completed(here: Here, now: float) -> str | None:
    """Return the time of the end; a spec that is refused before any run has ended when that was first reported."""
    if here.memory.ended:
        return timestamp(here.memory.ended)
    stored = here.one.status
    before = stored.get("completionTime") if stored.get("state") == FAILED else None
    return (before if isinstance(before, str) else timestamp(now)) if here.state == FAILED else None


def _conditions(here: Here) -> tuple[Condition, Condition]:
    memory, generation = here.memory, here.one.subject.generation
    if here.refused:
        accepted = Condition(ACCEPTED, "False", here.reason, here.message, generation)
    elif here.changed:
        what = "goes on as it began" if not memory.ended else "the results are of what it asked for before"
        said = f"the spec has changed since it began (generation {memory.generation}): {what}; to measure anew give the"
        accepted = Condition(ACCEPTED, "False", "SpecChanged", f"{said} annotation {RE_RUN} another value", generation)
    else:
        visible = storage.visible_credentials(here.one.spec) if here.one.spec is not None else ()
        notes = [here.longest if here.loads else "", *visible]
        accepted = Condition(ACCEPTED, "True", "Accepted", "; ".join(filter(None, notes)), generation)
    if memory.ended and not memory.failed:
        done = Condition(DONE, "True", "AllRunsMeasured", _count(here), generation)
    elif memory.ended:
        done = Condition(DONE, "False", "RunFailed", memory.failed, generation)
    else:
        failed = here.one.subject.failed
        reason, message = ("ApplyFailed", failed) if failed else (here.reason, here.message)
        done = Condition(DONE, "False", reason or "Measuring", f"{_count(here)}; {message}", generation)
    return accepted, done


def warnings(spec: BenchmarkJobSpec) -> list[str]:
    """Return a sentence for each field and parameter whose effect depends on others and that has none here."""
    texts, endpoint = list(storage.warnings(spec)), spec.endpoint.endpoint
    api = endpoint.api_format if endpoint is not None else ""
    if names := ", ".join(unsent_parameters(api, spec.additional_request_params or {}))[:200]:
        texts.append(f"spec.additionalRequestParams: {names} has no effect for the API {api}; remove it")
    variables = (spec.pod_override and spec.pod_override.env) or ()
    if any(entry.get("name") == MEASUREMENT for entry in variables if isinstance(entry, Mapping)):
        texts.append(f"spec.podOverride.env: {MEASUREMENT} has no effect: it holds the run to measure; remove it")
    return texts


def _count(here: Here) -> str:
    return f"{len(here.memory.runs)} of {counted(len(here.loads), 'run')} measured"


def details(here: Here) -> str:
    """The headline, a line for each run, and where the rest is; how long it takes while nothing is measured."""
    memory = here.memory
    if not memory.runs:
        return here.longest if here.loads and not memory.ended else ""
    lines = [headline(memory.runs)]
    if memory.service:
        lines.append(f"service: {memory.service}")
    if memory.results:
        lines.append(f"results: {memory.results}")
    return "\n".join([*lines, *map(line, memory.runs)])


def headline(runs: Sequence[MeasuredRun]) -> str:
    """The run with the most output tokens per second; of embeddings, the most requests."""
    best = max(runs, key=lambda run: (run.output_rate, run.requests_rate))
    return f"best: {line(best)}"


def benchmark_result(key: Key, obj: Mapping[str, Any] | None, standing: Here | None) -> ObjectResult:
    """Return the result of a BenchmarkJob as the API server has it (``None``: it has none)."""
    if obj is None:
        return ObjectResult(ResultState.GONE, f"there is no BenchmarkJob {key}")
    status = obj.get("status") or {}
    state = str(status.get("state") or PENDING)
    if state == COMPLETED:
        best = headline(standing.memory.runs) if standing is not None and standing.memory.runs else ""
        return ObjectResult(ResultState.DONE, f"{key} is {state}: {best}")
    done = condition(status, DONE)
    ended = ResultState.FAILED if state == FAILED else ResultState.PENDING
    return ObjectResult(ended, f"{key} is {state}: {status.get('failureMessage') or done.get('message') or ''}")


def line(run: MeasuredRun) -> str:
    """A run in words: rates, and the latencies that 95 % of its requests do not exceed."""
    rate = f"{run.output_rate:.4g} output tokens/s" if run.output_rate else f"{run.requests_rate:.4g} requests/s"
    parts = [rate]
    for name, spread in (("TTFT", run.ttft), ("ITL", run.itl), ("latency", run.latency)):
        parts += [f"{name} p95 {1000 * spread.p95:.4g} ms"] if spread is not None else []
    return f"{Load(run.scenario, run.concurrency)}: {', '.join(parts)}; {run.failed} of {run.requests} failed"


def row(run: MeasuredRun) -> dict[str, Any]:
    """A run in a table; latencies in milliseconds."""
    found: dict[str, Any] = {"scenario": run.scenario, "concurrency": run.concurrency, "requests": run.requests}
    found |= {"failed": run.failed, "requests/s": run.requests_rate, "output tokens/s": run.output_rate}
    for name, spread in (("TTFT", run.ttft), ("ITL", run.itl), ("latency", run.latency)):
        found |= {f"{name} p50": _ms(spread.p50), f"{name} p95": _ms(spread.p95)} if spread is not None else {}
    return found


def _ms(seconds: float) -> float:
    return float(f"{1000 * seconds:.4g}")


def _news(
    here: Here, state: str, conditions: tuple[Condition, Condition], stored: Mapping[str, tuple[str, str]]
) -> Iterator[Notice]:
    accepted, done = conditions
    if here.one.status.get("state") != state:
        kind = "Warning" if state == FAILED else "Normal"
        yield Notice(f"Benchmark{state}", accepted.message if here.refused else done.message, kind)
    if accepted.status == "False" and not here.refused and stored.get(ACCEPTED, ("", ""))[1] != accepted.reason:
        yield Notice(accepted.reason, accepted.message, "Warning")
