"""Notice between two ticks that somebody waits for a model at zero, so that the next tick need not wait for its time.

Only while the last tick saw something at zero, each source is asked every second or so, once for all that depend on
it: endpoint pickers of InferencePools, the gateway queue in Prometheus, expressions of owners. One that fails or has
nothing to say is asked less and less often. A tick decides: it has what was read of variants, and asks about bindings.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

from modelyard.autoscaling.fleet import BindingView, Fleet, shared_models
from modelyard.autoscaling.live.pickers import LOOK_AGAIN, TIMEOUT, PickerError, PickerReader, Pool, list_pools, pool_of
from modelyard.autoscaling.reading import at_zero, wake_expressions
from modelyard.autoscaling.reading.bindings import BindingSpec
from modelyard.autoscaling.variants import INSTANCE_LABEL
from modelyard.backoff import Backoff
from modelyard.cluster import Cluster, ClusterError
from modelyard.fairness import interleave
from modelyard.metrics.endpoints import Scraper
from modelyard.metrics.prometheus import MOST, Expressions, Pair, Prometheus, PrometheusError, gateway_queue
from modelyard.metrics.vocabulary import GATEWAY_QUEUE, Expression, gateway_waiting, queued_for, with_errors
from modelyard.objects import Key, Workload

log = logging.getLogger(__name__)

INTERVAL = 1.0
SLOWEST = 30.0
"""Seconds between two questions to a source that keeps failing or has nothing to say."""
FRESH = 5.0
"""Seconds after which a reading is not handed to a tick any more."""

Answer = float | Mapping[Pair, float]
"""Requests that wait: a number for all who asked, or by namespace and model (``""``: of every namespace)."""
Read = Callable[[], Awaitable[Answer | None]]
"""Ask a source; ``None`` when it knows of nothing. Raises ``PickerError`` or ``PrometheusError``."""
Wanted = dict[str, tuple[Read, Mapping[Key, str]]]
"""Sources by name, each with the objects that depend on it and the model of each."""


async def ask_gateway(prometheus: Prometheus, gateways: Collection[str]) -> Answer | None:
    """The gateway queue as Prometheus knows it."""
    samples = await prometheus.query(gateway_waiting(), GATEWAY_QUEUE)
    return gateway_queue(samples, gateways) if samples else None


async def ask_expression(expressions: Expressions, one: Expression) -> Answer:
    """A variant's wake expression. While it gives nothing, nothing is known of anybody."""
    found = await expressions.total(one)
    return {} if found is None else found


@dataclass
class Source:
    """One thing to ask, for all the objects that depend on it, given with the model of each."""

    read: Read
    models: Mapping[Key, str] = field(default_factory=dict)
    shared: Collection[str] = ()
    """Models that several namespaces serve."""
    failures: int = 0
    delay: float = 0.0
    next_at: float = 0.0
    said_at: float = float("-inf")
    answer: Answer | None = None
    error: str | None = None
    told: set[Key] = field(default_factory=set)
    """Objects whose demand a tick knows of already; it may have its reasons, and is not woken for it again."""

    @property
    def said(self) -> Mapping[Key, float]:
        answer = self.answer
        if not isinstance(answer, Mapping):
            return {} if answer is None else dict.fromkeys(self.models, answer)
        return {
            key: queued_for(answer, key.namespace, model, model in self.shared) or 0.0
            for key, model in self.models.items()
        }


class Poller:
    """The sources by the kind of object that they are asked for and by name, and when to ask them."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._backoff = Backoff(interval, max(SLOWEST, interval))
        self._sources: dict[tuple[str, str], Source] = {}
        self._demand = asyncio.Event()

    def follow(self, kind: str, wanted: Wanted, shared: Collection[str] = ()) -> dict[str, Source]:
        """Ask these sources for this kind from now on, and no others; what is known of those there were is kept."""
        known = self._sources
        self._sources = {place: source for place, source in known.items() if place[0] != kind}
        for name, (read, models) in wanted.items():
            source = known.get((kind, name)) or Source(read)
            source.models, source.shared = models, shared
            source.told &= models.keys()
            self._sources[kind, name] = source
        return {name: self._sources[kind, name] for name in wanted}

    async def wait(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds for demand that no tick was woken for yet; whether there is some."""
        self._demand.clear()
        tasks = [asyncio.create_task(self._follow(name, source)) for (_, name), source in self._sources.items()]
        try:
            async with asyncio.timeout(timeout):
                await self._demand.wait()
        except TimeoutError:
            return False
        finally:
            for task in tasks:
                task.cancel()
            for ended in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(ended, Exception):
                    log.error("a source of waiting requests broke down", exc_info=ended)
        return True

    async def _follow(self, name: str, source: Source) -> None:
        while True:
            await asyncio.sleep(max(0.0, source.next_at - asyncio.get_running_loop().time()))
            await self.ask(name, source)
            asleep = {key for key, pending in source.said.items() if pending > 0}
            if source.error is None:
                source.told &= asleep
            if asleep - source.told:
                source.told |= asleep
                self._demand.set()

    async def ask(self, name: str, source: Source) -> None:
        """Ask once. A failure is remembered, and reported when it is new."""
        clock = asyncio.get_running_loop().time
        error = None
        try:
            source.answer = await source.read()
        except (PickerError, PrometheusError) as failure:
            source.answer, error = None, str(failure)
        except Exception as failure:  # whoever chose the source meant this; no tick fails for it
            source.answer, error = None, repr(failure)
        except asyncio.CancelledError:
            source.next_at = clock() + self._interval  # it was slow; a tick must not wait for it all over again
            raise
        if source.answer is None:
            source.failures += 1
        else:
            source.failures = 0
        source.delay = self._backoff.delay(source.failures + 1)
        if error is not None and error != source.error:
            log.warning("%s cannot be asked for waiting requests: %s", name, error)
        source.error = error
        source.said_at = clock()
        source.next_at = source.said_at + source.delay


class WakeWatch:
    """A context manager: ``complete`` and ``follow`` in every tick, and ``wait`` between, asking every ``interval``
    seconds. ``instance`` and ``gateways`` are the fleet settings ``controller_instance`` and ``gateway_namespaces``."""

    def __init__(
        self,
        cluster: Cluster,
        prometheus: Prometheus | PrometheusError,
        expressions: Expressions,
        *,
        instance: str | None = None,
        gateways: Collection[str] = (),
        interval: float = INTERVAL,
    ) -> None:
        self._cluster = cluster
        self._prometheus = prometheus
        self._expressions = expressions
        self._instance = instance or None
        self._gateways = gateways
        self._scraper = Scraper(TIMEOUT)
        self._poller = Poller(interval)
        self._pools: tuple[Pool, ...] = ()
        self._pools_at = float("-inf")
        self._pools_in: set[str] = set()
        self._pools_error: str | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._scraper.close()

    async def wait(self, timeout: float) -> bool:
        return await self._poller.wait(timeout)

    async def complete(self, fleet: Fleet) -> Fleet:
        """The fleet with what the sources said since the last tick in its signals; from now on watch what it shows.

        Endpoint pickers that nobody asked meanwhile (the first tick, a run of one tick) are asked now. Costs nothing
        while no variant is at zero. Never raises for a source's sake: what failed is in the signals.
        """
        sleeping = at_zero(fleet.variants, fleet.workloads)
        variants = [v for v in fleet.variants if v.key in sleeping and v.labels.get(INSTANCE_LABEL) == self._instance]
        now = asyncio.get_running_loop().time()
        models = {v.key: v.model_id for v in variants if v.model_id}
        pickers = await self._pickers(models, sleeping)
        others: Wanted = {}
        if models and isinstance(prometheus := self._prometheus, Prometheus):
            others[GATEWAY_QUEUE] = (partial(ask_gateway, prometheus, self._gateways), models)
            texts = wake_expressions(variants, models)
            for one, keys in _owners((key, Expression(key.namespace, text)) for key, text in texts.items()).items():
                read = partial(ask_expression, self._expressions, one)
                others[f"wake expression {one.text} in {one.namespace}"] = (read, {key: models[key] for key in keys})
        sources = self._poller.follow("VariantAutoscaling", {**pickers, **others}, shared_models(fleet.variants))
        late = (name for name in pickers if sources[name].next_at <= now)
        await asyncio.gather(*(self._poller.ask(name, sources[name]) for name in late))
        problems = [
            (next(iter(mine)).namespace, f"{name}: {sources[name].error}")
            for name, (_, mine) in pickers.items()
            if sources[name].error
        ]
        unread = f"{self._pools_error}; demand is seen in Prometheus only" if self._pools_error and models else None
        return _merged(fleet, models, sources, problems, unread, now)

    def follow(self, bindings: Iterable[BindingSpec], views: Sequence[BindingView]) -> None:
        """From now on watch those of these bindings that are at zero; what this look saw is known to its tick."""
        specs = {spec.view.key: spec for spec in bindings}
        wanted: Wanted = {}
        if isinstance(self._prometheus, Prometheus):
            asked = (
                (view.key, one)
                for view in views
                if _asleep(view) and view.key in specs
                for one in specs[view.key].queries(view.policy)
            )
            for one, keys in _owners(asked).items():
                read = partial(self._expressions.number, one)
                wanted[f"{one.text} in {one.namespace}"] = (read, dict.fromkeys(keys, ""))
        seen = {
            view.key
            for view in views
            if any(value > 0 for one in view.targets for value in (one.demand or 0.0, *one.external.values()))
        }
        for source in self._poller.follow("AutoscalingPolicyBinding", wanted).values():
            source.told |= seen & source.models.keys()

    async def _pickers(self, models: Mapping[Key, str], sleeping: Mapping[Key, Workload]) -> Wanted:
        if not models:
            return {}
        await self._look_up({key.namespace for key in models})
        served: dict[Key, tuple[Pool, dict[Key, str]]] = {}
        for key, model in models.items():
            found = pool_of(self._pools, key.namespace, sleeping[key].template_labels)
            if found is not None:
                served.setdefault(found.key, (found, {}))[1][key] = model
        names = {key: f"InferencePool {key} (endpoint picker {pool.picker})" for key, (pool, _) in served.items()}
        return {
            names[key]: (PickerReader(self._cluster, self._scraper, pool).read, mine)
            for key, (pool, mine) in served.items()
        }

    async def _look_up(self, namespaces: set[str]) -> None:
        now = asyncio.get_running_loop().time()
        if namespaces <= self._pools_in and now - self._pools_at < LOOK_AGAIN:
            return
        self._pools, self._pools_in, self._pools_at, self._pools_error = (), namespaces, now, None
        try:
            self._pools = await list_pools(self._cluster, namespaces)
        except ClusterError as error:
            self._pools_error = f"InferencePools: {error}"


def _merged(
    fleet: Fleet,
    models: Mapping[Key, str],
    sources: Mapping[str, Source],
    problems: Iterable[tuple[str, str]],
    unread: str | None,
    now: float,
) -> Fleet:
    """The larger of Prometheus' and the source's reading counts, if fresh at ``now``."""
    signals = fleet.signals
    wake, queue = dict(signals.wake), dict(signals.gateway_queue)
    for name, source in sources.items():
        if now - source.said_at > source.delay + FRESH:
            continue
        if name == GATEWAY_QUEUE:
            answer = source.answer if isinstance(source.answer, Mapping) else {}
            asked = set(models.values())
            for place, waiting in answer.items():
                if place[1] in asked:
                    queue[place] = max(waiting, queue.get(place, 0.0))
        else:
            for key, pending in source.said.items():
                wake[key] = max(pending, wake.get(key, pending))
    found = dataclasses.replace(
        signals,
        wake=wake,
        gateway_queue=queue,
        partial_errors=(*signals.partial_errors, *([unread] if unread else [])),
        errors_in=with_errors(signals.errors_in, problems),
    )
    shared = shared_models(fleet.variants)
    known = {
        key
        for key, model in models.items()
        if wake.get(key, 0) > 0 or (found.queued(key.namespace, model, model in shared) or 0) > 0
    }
    for source in sources.values():
        source.told |= known & source.models.keys()  # the tick has it now
    return fleet if found == signals else dataclasses.replace(fleet, signals=found)


def _owners(asked: Iterable[tuple[Key, Expression]]) -> dict[Expression, list[Key]]:
    """Expressions beyond a namespace's share are asked in no tick either."""
    owners: defaultdict[Expression, list[Key]] = defaultdict(list)
    for key, expression in asked:
        owners[expression].append(key)
    chosen, _ = interleave(sorted(owners), lambda expression: expression.namespace, MOST)
    return {expression: owners[expression] for expression in chosen}


def _asleep(view: BindingView) -> bool:
    usable = view.problem is None and view.policy is not None and not view.deleting
    replicas = [target.current for target in view.targets if target.current is not None]
    return usable and bool(replicas) and not any(replicas)


async def first_of(*waits: Coroutine[Any, Any, bool]) -> bool:
    """Whether any of several waits came to something; the others are given up as soon as one does."""
    tasks = [asyncio.create_task(wait) for wait in waits]
    try:
        for done in asyncio.as_completed(tasks):
            if await done:
                return True
        return False
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
