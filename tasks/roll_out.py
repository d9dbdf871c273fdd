"""The steps of a roll-out: what is asked for, what would change, having it done, a real answer, and what is told."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import httpx
from prefect import get_run_logger, task
from prefect.artifacts import MarkdownArtifact, TableArtifact

from modelyard.cluster import PODS, Cluster, NotFound
from modelyard.hosts import HostsFile
from modelyard.metrics.client import Prometheus, PrometheusError, PrometheusSettings
from modelyard.metrics.served import read_served
from modelyard.objects import Key, parse
from modelyard.objects.documents import few, listed
from modelyard.reconcile.acting import Acted, look
from modelyard.reconcile.following import Followed, take
from modelyard.reconcile.plan import Plan
from modelyard.runtimes.protocols import health_paths
from modelyard.workloads.gates import GateReading, GateWatch
from modelyard.workloads.kthena.lifecycle import ModelRollOut
from modelyard.workloads.lifecycle import RollOut, ServiceRollOut
from modelyard.workloads.rollout_state import Standing
from modelyard.workloads.values import Refused, Rendered
from tasks.acting import AGAIN, stay
from tasks.journal import ProgressBar, cells, show, unformatted
from tasks.stage import RETRIED, STAGE

ROLL_OUTS: dict[str, type[RollOut]] = {one.about.kind: one for one in (ServiceRollOut, ModelRollOut)}
"""By kind."""
MOST_LINES = 200
"""Lines of a difference that are shown."""
ANSWER_TIMEOUT = 5.0
ANSWER_ATTEMPTS = 5
"""Times that one is asked who is waited for: what leads to pods that have just become ready may come a little later."""


@dataclass(eq=False)
class RollingOut:
    """Services of a kind as a run follows them. ``home`` is the controller's namespace."""

    cluster: Cluster
    home: str
    kind: str = "InferenceService"
    seen: Followed[Standing] = field(default_factory=Followed)
    readings: dict[Key, GateReading] = field(default_factory=dict)
    lifecycle: RollOut = field(init=False)

    def __post_init__(self) -> None:
        """The lifecycle leaves here what it looked at, and finds what was measured."""
        prometheus = PrometheusSettings().base_url
        self.lifecycle = ROLL_OUTS[self.kind](self.home, seen=self.seen, prometheus=prometheus, readings=self.readings)


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """What a service said when it was asked which models it serves: the HTTP status, 0 where nothing was heard."""

    status: int = 0
    words: str = "its pods are ready; not asked from here"
    address: str = ""

    @property
    def well(self) -> bool:
        """Whether an engine answers."""
        return self.status == 200

    @property
    def wrong(self) -> bool:
        """Whether what answers serves no models."""
        return self.status == 404 or self.status >= 500


@dataclass(frozen=True, slots=True)
class ServiceEnd:
    """How a service stands at the end of a run; ``final``: waiting longer will not mend it."""

    key: Key
    state: str
    reason: str = ""
    message: str = ""
    final: bool = False
    answer: EngineAnswer = field(default_factory=EngineAnswer)

    @property
    def ready(self) -> bool:
        """Its pods are, and all is as it was asked for."""
        return self.state == "Ready"


@task(
    name="resolve",
    description="Find the services, and let this run work on them.",
    timeout_seconds=120,
    **RETRIED,
)
async def resolve(rolling: RollingOut, keys: Sequence[Key], run: str, by_hand: bool) -> list[Key]:
    """The services to roll out. By hand the run takes them over."""
    for key in keys if by_hand else ():
        current = await rolling.cluster.get(rolling.lifecycle.about, key.name, key.namespace)
        await take(rolling.cluster, current, rolling.lifecycle.about, run, {})
    return list(keys)


@task(
    name="compare",
    description="Select runtimes, render, and show what changes.",
    timeout_seconds=120,
    **RETRIED,
)
async def compare(rolling: RollingOut, keys: Sequence[Key]) -> str:
    """What would be written now, as the markdown of the artifact."""
    plans = await look(rolling.cluster, rolling.lifecycle, {key.namespace for key in keys}, keys)
    lines = [line for key in keys if key in plans for line in _changes(plans[key], rolling.seen.get(key))]
    text = "\n".join(few(lines, MOST_LINES)) or "Nothing changes."
    await show(MarkdownArtifact(key="roll-out-changes", markdown=text, description="What changes"))
    return text


def _changes(plan: Plan, here: Standing | None) -> list[str]:
    if here is None:
        return []
    found = [f"## {plan.subject.key}", ""]
    if here.problem is not None:
        return [*found, f"refused: {unformatted(str(here.problem))}", ""]
    runtime = here.resolved.runtime
    found += [f"runtime: {runtime.kind} {runtime.choice.name}", ""] if runtime is not None else []
    found += [f"- {unformatted(line)}" for line in here.differences(plan)]
    return [*found, ""]


@task(
    name="apply",
    description="Apply what differs, take away what is not asked for any more, and wait for the pods.",
    **RETRIED,
)
async def apply(rolling: RollingOut, keys: Sequence[Key], run: str, until: float | None, bar: ProgressBar) -> Acted:
    """Have it done. ``until`` (a monotonic clock's reading): how long to stay for what may still become ready."""
    watching = asyncio.gather(_watch(rolling, keys, bar), _compare(rolling, keys))

    async def left(acted: Acted) -> bool:
        ends = [await ended(rolling, key) for key in keys if key in acted.settled]
        return any(not one.ready and not one.final and one.state != "Gone" for one in ends)

    try:
        return await stay(rolling.cluster, rolling.lifecycle, keys, run, until, left)
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching


async def _compare(rolling: RollingOut, keys: Sequence[Key]) -> None:
    """Have measured what is to be compared, as long as there is something."""
    while True:
        await asyncio.sleep(AGAIN)
        seen = [(key, here) for key in keys if (here := rolling.seen.get(key)) is not None]
        if watches := {key: here.watch for key, here in seen if here.watch is not None}:
            try:
                rolling.readings.update(await measure(watches, rolling.cluster.now()))
            except Exception as error:  # it is told, and tried again
                problem = f"{type(error).__name__}: {error}"
                rolling.readings.update(dict.fromkeys(watches, GateReading(rolling.cluster.now(), problem=problem)))


@task(
    name="measure",
    description="Read from Prometheus how updated pods serve, and how those before them did.",
    timeout_seconds=60,
    **STAGE,
)
async def measure(watches: dict[Key, GateWatch], at: float) -> dict[Key, GateReading]:
    """Return the readings until ``at`` (epoch seconds) of each service, or why there are none."""
    readings = await asyncio.gather(*(_reading(watch, at) for watch in watches.values()))
    return dict(zip(watches, readings, strict=True))


async def _reading(watch: GateWatch, at: float) -> GateReading:
    over, end = watch.over(at), min(at, watch.until)
    try:
        async with Prometheus(PrometheusSettings().at(watch.gate.prom_server_address)) as prometheus:
            new = await read_served(prometheus, watch.namespace, over, end)
            window = watch.gate.window_seconds
            old = new if watch.beside else await read_served(prometheus, watch.namespace, window, watch.since)
    except PrometheusError as error:
        return GateReading(at, problem=str(error))
    return GateReading(at, *watch.sides(new, old))


async def _watch(rolling: RollingOut, keys: Sequence[Key], bar: ProgressBar) -> None:
    """Tell how many pods are ready of those wanted."""
    log, said = get_run_logger(), dict[Key, str]()
    while True:
        for key in keys:
            here = rolling.seen.get(key)
            if here is None or not here.states:
                continue
            states = here.states.values()
            wanted, ready = sum(one.wanted for one in states), sum(one.ready_pods for one in states)
            done = all(one.rolled_out for one in states)
            bar.tell(str(key), 1.0 if done else min(0.99, ready / max(1, wanted)))
            text = "; ".join(one.message for one in states)
            if said.get(key) != text:
                said[key] = text
                log.info("%s: %s", key, text)
        await rolling.seen.moved(AGAIN)


@task(
    name="answer",
    description="Ask the service which models it serves, at its address inside the cluster.",
    timeout_seconds=120,
    **RETRIED,
)
async def answer(rolling: RollingOut, keys: Sequence[Key], attempts: int = 1) -> dict[Key, EngineAnswer]:
    """What each service that is ready answered, or why it was not heard from here."""
    hosts = HostsFile.found()

    async def one(key: Key) -> tuple[Key, EngineAnswer]:
        here = rolling.seen.get(key)
        if here is None or not here.answers or isinstance(here.result, Refused):
            return key, EngineAnswer()
        if all(one.zero for one in here.states.values()):
            return key, EngineAnswer(words="it is scaled to zero")
        runtime = here.resolved.runtime
        protocols = runtime.choice.protocols if runtime is not None else ()
        if not (paths := health_paths(protocols)):
            return key, EngineAnswer(words=f"its pods are ready; not asked: its runtime speaks {listed(protocols)}")
        addresses = [here.result.address] if here.result.address else await _pods(rolling, key, here.result)
        answers = await asyncio.gather(*(ask(address, hosts, attempts, paths) for address in addresses))
        return key, min(answers, key=lambda answer: answer.well, default=EngineAnswer())

    return dict(await asyncio.gather(*map(one, keys)))


async def _pods(rolling: RollingOut, key: Key, result: Rendered) -> list[str]:
    """A Model has no address: where a ready pod of each of its backends is asked."""
    found = []
    for spec in (one.body["spec"] for one in result.children if one.kind == "ModelServer"):
        selector = parse.label_selector(spec["workloadSelector"]["matchLabels"])
        pods = map(parse.pod, await rolling.cluster.list(PODS, key.namespace, selector))
        ip = next((one.ip for one in pods if one.ready and one.ip), "")
        found += [f"http://{f'[{ip}]' if ':' in ip else ip}:{spec['workloadPort']['port']}"] if ip else []
    return found


async def ask(
    address: str, hosts: HostsFile | None, attempts: int, paths: Sequence[str] = health_paths(())
) -> EngineAnswer:
    """Ask the engine at an address which models it serves, or whether it is well; the next path after each 404."""
    url, answer = hosts.located(address) if hosts is not None else address, EngineAnswer()
    async with httpx.AsyncClient(timeout=ANSWER_TIMEOUT, follow_redirects=False, trust_env=False) as client:
        for attempt in range(attempts):
            await asyncio.sleep(min(attempt, 1))
            for path in paths:
                try:
                    async with asyncio.timeout(ANSWER_TIMEOUT), client.stream("GET", url + path) as response:
                        said = f"{response.status_code} {response.reason_phrase}"
                        answer = EngineAnswer(response.status_code, said, address)
                except (TimeoutError, httpx.HTTPError) as error:
                    answer = EngineAnswer(0, f"{EngineAnswer().words}: {type(error).__name__}", address)
                if answer.status != 404:
                    break
            if answer.well:
                break
    return answer


@task(name="publish", description="The table of components, and how each service stands.", timeout_seconds=120, **STAGE)
async def publish(rolling: RollingOut, keys: Sequence[Key], answers: dict[Key, EngineAnswer]) -> list[ServiceEnd]:
    """Tell people; how each service stands."""
    ends = [replace(await ended(rolling, key), answer=answers.get(key, EngineAnswer())) for key in keys]
    rows = []
    for end in ends:
        here = rolling.seen.get(end.key)
        for state in here.states.values() if here is not None else ():
            row = {"service": str(end.key), "component": state.kind, "pods": f"{state.ready_pods}/{state.wanted}"}
            rows.append(row | {"reason": state.reason, "message": state.message, "answer": end.answer.words})
    if rows:
        artifact = TableArtifact(
            key="roll-out-components", description="Components", table=[cells(one) for one in rows]
        )
        await show(artifact)
    return ends


async def ended(rolling: RollingOut, key: Key) -> ServiceEnd:
    """How the service stands now, as its status has it."""
    try:
        obj = await rolling.cluster.get(rolling.lifecycle.about, key.name, key.namespace)
    except NotFound:
        return ServiceEnd(key, "Gone")
    status, here = obj.get("status") or {}, rolling.seen.get(key)
    conditions = {one.get("type"): one for one in status.get("conditions") or ()}
    current = status.get("observedGeneration") == obj["metadata"]["generation"]
    well = rolling.lifecycle.well
    told = [(conditions.get(name) or {}, wanted) for name, wanted in well.items()]
    bad = next((one for one, wanted in told if one and one.get("status") != wanted), None)
    behind = here is not None and not all(one.rolled_out for one in here.states.values())
    if current and well.keys() <= conditions.keys() and bad is None and not behind:
        return ServiceEnd(key, "Ready")
    said = bad or {}
    final = current and here is not None and here.stuck
    return ServiceEnd(key, "NotReady", said.get("reason", ""), said.get("message", ""), final)
