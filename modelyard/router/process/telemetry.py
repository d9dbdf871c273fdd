"""What a router tells of each request: a line in the access log, and Prometheus metrics whose labels have bounds.

Names of metrics and fields: kthena-routing, 18 and 19.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import orjson
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from modelyard.metrics.vocabulary import GATEWAY_QUEUE
from modelyard.routing import PATHS, RoutedFleet

PREFIX = "kthena_router"
UNKNOWN = "unknown"
MODELS = "/v1/models"
MOST_LINES = 20_000
"""Lines of the log that wait to be written; beyond, they are dropped and counted."""
_REQUEST = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_FIRST = (
    *(0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.065, 0.08, 0.1, 0.13, 0.16, 0.2, 0.25, 0.32, 0.4, 0.5, 0.65, 0.8),
    *(1, 1.3, 1.6, 2, 2.5, 3.2, 4, 5, 6.5, 8, 10, 13, 16, 20, 30, 60),
)
"""Close to each other: roll-outs compare by them."""
_ONE_WORD = re.compile(r'[^\s"=]*')
_STATUSES = frozenset({200, 400, 401, 403, 404, 405, 408, 413, 415, 422, 429, 431, 499, 500, 502, 503, 504})
"""Told one by one; of the others, which an engine may answer as it likes, the first digit."""
MOST_SERIES = 4096
"""Series of one metric that the routes of one namespace may have; beyond, the one that grew longest ago begins anew."""
_TOKEN = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1)


@dataclass(slots=True)
class RequestRecord:
    """One request from its first line to its last byte. Times are of the loop's clock."""

    method: str
    path: str
    begun: float
    started: float = field(default_factory=time.time)
    status: int = 0
    reason: str = ""
    message: str = ""
    model: str = ""
    route: str = ""
    server: str = ""
    instead_of: str = ""
    pod: str = ""
    prefill: str = ""
    upstream_model: str = ""
    upstream_status: int = 0
    attempts: int = 0
    request_id: str = ""
    user: str = ""
    tokens_in: int = 0
    tokens_out: int = 0
    understood: float = 0.0
    waited: float = 0.0
    sent: float = 0.0
    first: float = 0.0
    last: float = 0.0
    streamed: bool = False


class BoundedSeries:
    """The series of one metric, by the namespace whose requests they count: names are its own, their number is not."""

    def __init__(self, metric: Any) -> None:
        self._metric = metric
        self._made: dict[tuple[str, ...], Any] = {}
        self._of: dict[str, OrderedDict[tuple[str, ...], None]] = {}

    def __call__(self, namespace: str, *labels: str) -> Any:
        """The one with these labels. Looking it up here is faster than in the metric."""
        mine = self._of.get(namespace)
        if mine is None:
            mine = self._of[namespace] = OrderedDict()
        mine[labels] = None
        mine.move_to_end(labels)
        if len(mine) > MOST_SERIES:
            oldest, _ = mine.popitem(last=False)
            if self._made.pop(oldest, None) is not None:
                self._metric.remove(*oldest)
        found = self._made.get(labels)
        if found is None:
            found = self._made[labels] = self._metric.labels(*labels)
        return found


class RouterMetrics:
    """The metrics of one process. Names that are not served have one label together."""

    def __init__(self, fleet: RoutedFleet) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry(auto_describe=False)
        self._fleet = fleet
        counter, histogram, gauge = (self._maker(kind) for kind in (Counter, Histogram, Gauge))
        which = ["model", "path", "status_code"]
        more = ["model_route", "backend_name"]
        self._requests = counter("requests_total", "Requests", [*which, "error_type", *more])
        self._duration = histogram("request_duration_seconds", "First line to last byte", [*which], _REQUEST)
        self._prefill = histogram("request_prefill_duration_seconds", "Prefill calls", ["model"], _REQUEST)
        self._ttft = histogram("time_to_first_token_seconds", "First line to first byte sent", ["model", *more], _FIRST)
        self._tpot = histogram("time_per_output_token_seconds", "Between tokens of a stream", ["model"], _TOKEN)
        self._tokens = counter("tokens_total", "Tokens", ["model", "path", "token_type", *more])
        self._limited = counter("rate_limit_exceeded_total", "NotServed by a limit", ["model", "limit_type", "path"])
        self._retries = counter("upstream_retries_total", "Attempts after the first", ["backend_name"])
        self._downstream = gauge("active_downstream_requests", "Requests in progress", ["model"])
        self._upstream = gauge("active_upstream_requests", "Attempts in progress", ["model_server"])
        self.dropped = counter("access_log_dropped_total", "Lines of the access log that were not written", [])
        self.crowded = counter("connections_closed_total", "Connections closed for others without a request", [])
        self._pods = Gauge(
            f"{PREFIX}_pods",
            "Ready pods that can answer",
            ["model_server"],
            registry=self.registry,
            multiprocess_mode="livemax",
        )
        self._waiting = Gauge(
            GATEWAY_QUEUE,
            "Requests that wait for the first pod of a ModelServer",
            ["model_server", "model_name", "target_model_name"],
            registry=self.registry,
            multiprocess_mode="livesum",
        )
        self._shown: dict[str, int] = {}

    def _maker(self, kind: Any) -> Callable[..., Callable[..., Any]]:
        def make(name: str, text: str, labels: list[str], buckets: tuple[float, ...] = ()) -> Callable[..., Any]:
            options: dict[str, Any] = {"buckets": buckets} if buckets else {}
            if kind is Gauge:
                options["multiprocess_mode"] = "livesum"
            made = kind(f"{PREFIX}_{name}", text, labels, registry=self.registry, **options)
            if kind is not Gauge:
                return BoundedSeries(made) if labels else lambda: made
            # Looking a series up by its labels takes longer than adding to it.
            return lru_cache(maxsize=4096)(made.labels)

        return make

    def label(self, model: str) -> str:
        """The model's label: names that are not served have one together."""
        return model if model in self._fleet.table else UNKNOWN

    def arrived(self, model: str, by: int = 1) -> None:
        """A request for a model came in (or, by -1, is over)."""
        self._downstream(model).inc(by)

    def attempt(self, server: str, by: int = 1) -> None:
        """An attempt begins (or, by -1, is over)."""
        self._upstream(server).inc(by)

    def retried(self, server: str) -> None:
        """Another attempt is made."""
        self._retries(_space(server), server).inc()

    def waits(self, server: str, model: str, upstream: str, by: int = 1) -> None:
        """A request waits for the first pod of a server (or, by -1, does no more)."""
        self._waiting.labels(server, model, upstream).inc(by)

    def fleet_changed(self) -> None:
        """The pods are others than before."""
        now = {str(key): len(backend.serving) for key, backend in self._fleet.backends.items()}
        for server, count in now.items():
            if self._shown.get(server) != count:
                self._pods.labels(server).set(count)
        for server in self._shown.keys() - now.keys():
            self._pods.labels(server).set(0)
            self._pods.remove(server)
        self._shown = now

    def page(self) -> bytes:
        """The exposition; of all worker processes where they share a folder for it."""
        if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
            return generate_latest(self.registry)
        registry = CollectorRegistry()
        registry.register(_OfAllWorkers(self._fleet))
        return generate_latest(registry)

    def prefilled(self, record: RequestRecord, seconds: float) -> None:
        """A prefill call was answered."""
        self._prefill(_space(record.route), self.label(record.model)).observe(seconds)

    def over(self, record: RequestRecord, now: float) -> None:
        """A request is over."""
        model = self.label(record.model) if record.model else UNKNOWN
        path = record.path if record.path in PATHS else MODELS if record.path.startswith(MODELS) else UNKNOWN
        status = str(record.status) if record.status in _STATUSES else f"{record.status // 100}xx"
        space = _space(record.route)
        why = record.reason or ("request_failed" if record.status >= 400 else "successful_request")
        self._requests(space, model, path, status, why, record.route, record.server).inc()
        self._duration(space, model, path, status).observe(now - record.begun)
        if record.tokens_in:
            self._tokens(space, model, path, "input", record.route, record.server).inc(record.tokens_in)
        if record.tokens_out:
            self._tokens(space, model, path, "output", record.route, record.server).inc(record.tokens_out)
        if record.first and record.streamed:
            self._ttft(space, model, record.route, record.server).observe(record.first - record.begun)
            if record.tokens_out > 1 and record.last > record.first:
                self._tpot(space, model).observe((record.last - record.first) / (record.tokens_out - 1))
        if record.status == 429 and record.reason.endswith("_rate_limit"):
            self._limited(space, model, f"{record.reason.removesuffix('_rate_limit')}_tokens", path).inc()


class _OfAllWorkers(Collector):
    """What all worker processes counted for what is still there: the files that they share forget nothing."""

    def __init__(self, fleet: RoutedFleet) -> None:
        self._fleet = fleet

    def collect(self) -> Iterator[Metric]:
        table = self._fleet.table
        routes, servers = ({"", *map(str, keys)} for keys in (self._fleet.routes, self._fleet.backends))

        def is_there(labels: Mapping[str, str]) -> bool:
            model = labels.get("model", UNKNOWN)
            return (
                (model == UNKNOWN or model in table)
                and labels.get("model_route", "") in routes
                and labels.get("backend_name", "") in servers
                and labels.get("model_server", "") in servers
            )

        for metric in MultiProcessCollector(None).collect():  # type: ignore[no-untyped-call]
            metric.samples = [one for one in metric.samples if is_there(one.labels)]
            yield metric


def _space(name: str) -> str:
    return name.partition("/")[0]


class AccessLog:
    """Lines are written by a thread, all that came within a moment at once: a slow reader holds up no request."""

    def __init__(self, form: str, metrics: RouterMetrics, write: Callable[[str], object] | None = None) -> None:
        self._form, self._metrics = form, metrics
        self._write = write or _to_stdout
        self._lines: list[str] = []

    def add(self, record: RequestRecord, now: float, protocol: str) -> None:
        """Note a request that is over."""
        if self._form == "none":
            return
        if len(self._lines) >= MOST_LINES:
            self._metrics.dropped().inc()
            return
        self._lines.append((_json if self._form == "json" else _text)(record, now, protocol))

    async def run(self) -> None:
        """Write until cancelled, and then what is left."""
        with contextlib.suppress(asyncio.CancelledError):
            while True:
                await asyncio.sleep(0.2)
                if self._lines:
                    lines, self._lines = self._lines, []
                    writing = asyncio.get_running_loop().run_in_executor(None, self._write, "\n".join(lines) + "\n")
                    try:
                        await asyncio.shield(writing)
                    finally:  # cancelled before a thread had begun it, it would never be written
                        await writing
        if self._lines:
            self._write("\n".join(self._lines) + "\n")
            self._lines = []


def _to_stdout(text: str) -> None:
    with contextlib.suppress(OSError):
        sys.stdout.write(text)
        sys.stdout.flush()


def _durations(record: RequestRecord, now: float) -> tuple[int, int, int, int]:
    """Milliseconds altogether, until it was understood, upstream, and after that."""
    begun, end = record.begun, record.last or now
    understood = record.understood or end
    sent = record.sent or understood
    return _ms(now - begun), _ms(understood - begun), _ms(end - sent), _ms(now - end)


def _ms(seconds: float) -> int:
    return round(1000 * seconds) if seconds > 0 else 0


def _fields(record: RequestRecord) -> dict[str, Any]:
    return {
        "model_name": record.model[:256],
        "model_route": record.route,
        "model_server": record.server,
        "instead_of": record.instead_of,
        "selected_pod": record.pod,
        "prefill_pod": record.prefill,
        "request_id": record.request_id,
        "user": record.user and record.user[:256].encode("utf-8", "replace").decode(),
        "upstream_model": record.upstream_model if record.upstream_model != record.model else "",
        "upstream_status_code": record.upstream_status,
        "upstream_attempts": record.attempts,
        "queue_ms": round(1000 * record.waited),
        "first_token_ms": round(1000 * (record.first - record.begun)) if record.first else 0,
    }


def _when(record: RequestRecord) -> str:
    whole, part = divmod(record.started, 1)
    return f"{_second(whole)}.{int(1e6 * part):06}Z"


@lru_cache(maxsize=64)
def _second(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat().removesuffix("+00:00")


def _json(record: RequestRecord, now: float, protocol: str) -> str:
    total, request, upstream, response = _durations(record, now)
    told: dict[str, Any] = {
        "timestamp": _when(record),
        "method": record.method,
        "path": record.path[:1024],
        "protocol": protocol,
        "status_code": record.status,
    }
    if record.reason:
        told["error"] = {"type": record.reason, "message": record.message[:1024]}
    told |= {name: value for name, value in _fields(record).items() if value or name == "model_name"}
    if record.tokens_in:
        told["input_tokens"] = record.tokens_in
    if record.tokens_out:
        told["output_tokens"] = record.tokens_out
    told["duration_total"], told["duration_request_processing"] = total, request
    told["duration_upstream_processing"], told["duration_response_processing"] = upstream, response
    return orjson.dumps(told).decode()


def _text(record: RequestRecord, now: float, protocol: str) -> str:
    total, request, upstream, response = _durations(record, now)
    parts = [f'[{_when(record)}] "{record.method} {_plain(record.path[:1024])} {protocol}" {record.status}']
    if record.reason:
        parts.append(f"error={record.reason}:{_plain(record.message[:1024])}")
    parts += [f"{name}={_plain(str(value))}" for name, value in _fields(record).items() if value]
    if record.tokens_in or record.tokens_out:
        parts.append(f"tokens={record.tokens_in}/{record.tokens_out}")
    parts.append(f"timings={total}ms({request}+{upstream}+{response})")
    return " ".join(parts)


def _plain(text: str) -> str:
    """On one line, and without anything that a terminal would obey or that would be read as a field of its own."""
    told = text if text.isascii() and text.isprintable() else text.encode("unicode_escape").decode()
    return told if _ONE_WORD.fullmatch(told) else json.dumps(told)
