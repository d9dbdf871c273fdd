"""What Prometheus said in one tick, as a file: to plan without a cluster, and to decide on the same numbers again.

    at: 2026-11-21T03:00:00Z          # optional; default: now
    pods:
      - {namespace: chat, pod: llama-0, model: llama, kv: 0.75, waiting: 2, running: 20, completedRate: 1.5,
         workload: Deployment/llama}  # workload only where no Pod manifest is given
    requestCounts:
      - {namespace: chat, model: llama, retention: 10m, count: 0}
    loads:                            # offered load, requests per second; history: seconds ago, oldest first
      - {namespace: chat, model: llama, arrivals: 3.2, history: [{ago: 60, rate: 2.9}, {ago: 0, rate: 3.2}]}
    performance:                      # of each engine over the load window; means per request, milliseconds
      - {namespace: chat, pod: llama-0, model: llama, completed: 96, promptTokens: 512, outputTokens: 128,
         ttft: 210, itl: 21.5, kvTokens: 400000, prefixHitRate: 0.2}
    wake:                             # pending demand of a variant at zero
      - {namespace: chat, name: llama, pending: 4}
    policies:                         # the targets of AutoscalingPolicyBindings: one map of metrics per ready instance
      - {namespace: chat, binding: llama, target: llama, instances: [{queue_depth: 12}], unready: 0,
         external: {backlog: 40}, demand: 30}

A value left out is unknown, which is not zero.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import AfterValidator, AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, create_model
from pydantic.alias_generators import to_camel

from modelyard.autoscaling.configuration import one_document
from modelyard.autoscaling.fleet import Fleet
from modelyard.metrics.vocabulary import Measure, ModelLoad, Over, PodMeasures, PodPerformance, PodSignal, Signals
from modelyard.objects import Key, parse_go_duration

REMEDY = "give a metrics snapshot with --metrics ('modelyard plan --save-snapshot FILE' writes one from a cluster)"


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float | None):
        raise ValueError(f"{value!r} is no number; write it without quotes, or leave the field out if it is unknown")
    return value


def _duration(text: str) -> str:
    parse_go_duration(text)
    return text


Number = Annotated[float, BeforeValidator(_number), Field(allow_inf_nan=False)]
Amount = Annotated[float, BeforeValidator(_number), Field(ge=0, allow_inf_nan=False)]
Duration = Annotated[str, AfterValidator(_duration)]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, populate_by_name=True)


_E = TypeVar("_E", bound=_Entry)
_T = TypeVar("_T", bound=PodMeasures)


def _measured(told: type[PodMeasures]) -> Callable[[type[_E]], type[_E]]:

    def column(measure: Measure) -> tuple[Any, Any]:
        kind: Any = Amount if measure.limit is None else Annotated[Amount, Field(le=measure.limit)]
        kind = {Over.TIME: AwareDatetime, Over.CACHE: Annotated[int, Field(ge=0, strict=True)]}.get(measure.over, kind)
        return kind | None, Field(None, description=measure.unit)

    columns: Any = {name: column(measure) for name, measure in told.measures().items()}
    return lambda entry: create_model(entry.__name__, __base__=entry, __doc__=entry.__doc__, **columns)


@_measured(PodSignal)
class PodEntry(_Entry):
    """One pod's signals for one model. A signal left out is unknown, which is not zero."""

    namespace: str = "default"
    pod: str
    model: str
    workload: str | None = Field(
        None, pattern=r"^[A-Za-z]+/[^/]+$", description="Kind/name; stands in for a Pod manifest of a Ready pod"
    )


class CountEntry(_Entry):
    """Requests of one model finished over a retention period (a Go duration, as in the scale-to-zero ConfigMap)."""

    namespace: str = "default"
    model: str
    retention: Duration
    count: Amount


class SeenEntry(_Entry):
    """When any engine metric of a model was last sampled."""

    namespace: str = "default"
    model: str
    at: AwareDatetime


class PointEntry(_Entry):
    """One point of a load's history."""

    ago: Amount = Field(description="seconds before `at`")
    rate: Amount = Field(description="requests per second")


class LoadEntry(_Entry):
    """Offered load of a model: what arrives, whether or not the engines keep up."""

    namespace: str = "default"
    model: str
    arrivals: Amount | None = Field(None, description="requests per second now")
    history: list[PointEntry] = Field(default_factory=list, description="the same over the last minutes")


@_measured(PodPerformance)
class PerformanceEntry(_Entry):
    """What one engine did for one model over the load window."""

    namespace: str = "default"
    pod: str
    model: str


class WakeEntry(_Entry):
    """Pending demand of one variant at zero."""

    namespace: str = "default"
    name: str
    pending: Number


class PolicyEntry(_Entry):
    """What was measured of one target of an AutoscalingPolicyBinding."""

    namespace: str = Field("default", description="of the binding")
    binding: str
    target: str | None = Field(None, description="as targetRef names it; may be left out where there is only one")
    instances: list[dict[str, Number]] = Field(
        default_factory=list, description="metrics of each ready instance; one that was not read is left out"
    )
    unready: Annotated[int, Field(ge=0, strict=True)] = Field(0, description="instances that exist and are not ready")
    external: dict[str, Number] = Field(default_factory=dict, description="totals measured elsewhere, by metric")
    demand: Amount | None = Field(None, description="requests running and waiting, for scale to zero and back")
    startup_seconds: Amount | None = Field(None, description="learnt time from creation to Ready")
    problems: list[str] = Field(default_factory=list, description="why something could not be measured")


class Snapshot(_Entry):
    """The metrics snapshot file."""

    at: AwareDatetime | None = None
    pods: list[PodEntry] = Field(default_factory=list)
    request_counts: list[CountEntry] = Field(default_factory=list)
    last_seen: list[SeenEntry] | None = Field(None, description="default: the models of `pods`, at `at`")
    gateway_queue: dict[str, Amount] = Field(
        default_factory=dict,
        description="requests queued at gateways, by model, or by model#namespace at those of that namespace alone",
    )
    gateway_bytes: dict[str, Amount] = Field(
        default_factory=dict, description="the size of those requests' bodies, by the same keys"
    )
    loads: list[LoadEntry] = Field(default_factory=list)
    performance: list[PerformanceEntry] = Field(default_factory=list)
    wake: list[WakeEntry] = Field(default_factory=list)
    policies: list[PolicyEntry] = Field(default_factory=list)
    error: str | None = Field(None, description="Prometheus could not be read, for this reason")
    partial_errors: list[str] = Field(default_factory=list, description="single queries that failed")
    errors_in: dict[str, list[str]] = Field(
        default_factory=dict, description="what was asked for one namespace alone and failed, by namespace"
    )
    gateway_unknown: bool = Field(False, description="the queue of the gateways could not be read")


def read_snapshot(path: Path) -> Snapshot:
    """The file. Raises ``PlanInputError`` with every fault in it."""
    return one_document(path, Snapshot, REMEDY)


def signals_of(snapshot: Snapshot, now: float) -> Signals:
    """What the snapshot says Prometheus said, moved in time so that its ``at`` is ``now``."""
    shift = now - snapshot.at.timestamp() if snapshot.at else 0.0
    if snapshot.last_seen is None:
        last_seen = {(e.namespace, e.model): now for e in snapshot.pods}
    else:
        last_seen = {(e.namespace, e.model): e.at.timestamp() + shift for e in snapshot.last_seen}
    return Signals(
        pods=tuple(
            dataclasses.replace(signal, sampled_at=now) if signal.sampled_at is None else signal
            for signal in (_read(e, PodSignal, shift) for e in snapshot.pods)
        ),
        request_counts={
            (e.namespace, e.model, round(parse_go_duration(e.retention))): e.count for e in snapshot.request_counts
        },
        last_seen=last_seen,
        gateway_queue={_place(key): queued for key, queued in snapshot.gateway_queue.items()},
        gateway_bytes={_place(key): size for key, size in snapshot.gateway_bytes.items()},
        loads={
            (e.namespace, e.model): ModelLoad(
                e.arrivals, tuple(sorted((now - point.ago, point.rate) for point in e.history))
            )
            for e in snapshot.loads
        },
        performance=tuple(_read(e, PodPerformance) for e in snapshot.performance),
        wake={Key(e.namespace, e.name): e.pending for e in snapshot.wake},
        error=snapshot.error,
        partial_errors=tuple(snapshot.partial_errors),
        errors_in={space: tuple(texts) for space, texts in snapshot.errors_in.items()},
        gateway_unknown=snapshot.gateway_unknown,
    )


def _place(key: str) -> tuple[str, str]:
    model, mark, namespace = key.rpartition("#")
    return (namespace, model) if mark else ("", key)


def _by_place(values: Mapping[tuple[str, str], float]) -> dict[str, float]:
    return {
        f"{model}#{namespace}" if namespace or "#" in model else model: value
        for (namespace, model), value in sorted(values.items())
    }


def _read(entry: _Entry, signal: type[_T], shift: float = 0.0) -> _T:
    """Columns of the same names; times moved by ``shift`` seconds."""
    values: dict[str, Any] = {field.name: getattr(entry, field.name) for field in dataclasses.fields(signal)}
    values |= {name: time.timestamp() + shift for name, time in values.items() if isinstance(time, datetime)}
    return signal(**values)


def _entry(one: PodMeasures, entry: type[_E]) -> _E:
    times = {name for name, measure in one.measures().items() if measure.over is Over.TIME}
    values = dataclasses.asdict(one)
    return entry(**{name: _time(v) if name in times and v is not None else v for name, v in values.items()})


def snapshot_of(fleet: Fleet) -> str:
    """The metrics of a live fleet as the text of a snapshot file."""
    signals = fleet.signals
    document = Snapshot(
        at=_time(fleet.now),
        pods=[_entry(signal, PodEntry) for signal in signals.pods],
        request_counts=[
            CountEntry(namespace=namespace, model=model, retention=f"{seconds}s", count=count)
            for (namespace, model, seconds), count in sorted(signals.request_counts.items())
        ],
        last_seen=[
            SeenEntry(namespace=namespace, model=model, at=_time(at))
            for (namespace, model), at in sorted(signals.last_seen.items())
        ],
        gateway_queue=_by_place(signals.gateway_queue),
        gateway_bytes=_by_place(signals.gateway_bytes),
        loads=[
            LoadEntry(
                namespace=namespace,
                model=model,
                arrivals=load.arrivals,
                history=[PointEntry(ago=max(0.0, round(fleet.now - at, 3)), rate=rate) for at, rate in load.history],
            )
            for (namespace, model), load in sorted(signals.loads.items())
        ],
        performance=[_entry(performance, PerformanceEntry) for performance in signals.performance],
        wake=[
            WakeEntry(namespace=key.namespace, name=key.name, pending=pending)
            for key, pending in sorted(signals.wake.items())
        ],
        policies=[
            PolicyEntry(
                namespace=view.key.namespace,
                binding=view.key.name,
                target=target.name,
                instances=[dict(instance) for instance in target.instances],
                unready=target.unready,
                external=dict(target.external),
                demand=target.demand,
                startup_seconds=target.startup_seconds,
                problems=list(target.scrape_errors),
            )
            for view in fleet.bindings
            for target in view.targets
            if target.current is not None
        ],
        error=signals.error,
        partial_errors=list(signals.partial_errors),
        errors_in={space: list(texts) for space, texts in signals.errors_in.items()},
        gateway_unknown=signals.gateway_unknown,
    )
    plain = json.loads(document.model_dump_json(by_alias=True, exclude_none=True))
    said = {key: value for key, value in plain.items() if value or key == "lastSeen"}
    return yaml.safe_dump(said, sort_keys=False)


def remarks(snapshot: Snapshot) -> Iterator[str]:
    """What looks like a slip in a file that is nevertheless valid."""
    for number, entry in enumerate(snapshot.pods):
        kv = _read(entry, PodSignal).kv
        if kv is not None and kv > 1:
            yield f"pods[{number}].kv is {kv:g}: KV-cache use is a fraction, so 75 % is 0.75"
    for number, one in enumerate(snapshot.performance):
        for name in (name for name, measure in PodPerformance.measures().items() if measure.scale == 1000):
            value = getattr(one, name)
            if value is not None and 0 < value < 0.5:
                yield f"performance[{number}].{name} is {value:g}: it is in milliseconds, so 0.2 s is 200"


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
