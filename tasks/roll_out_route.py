"""The steps of a ModelRoute's roll-out: what is wished, the weights to come, what was measured, and what came of it."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, field

from prefect import get_run_logger, task
from prefect.artifacts import MarkdownArtifact, TableArtifact

from modelyard.cluster import Cluster
from modelyard.metrics.client import Prometheus, PrometheusError, PrometheusSettings
from modelyard.metrics.routed import read_routed
from modelyard.objects import Key
from modelyard.reconcile.acting import Acted, act, look
from modelyard.reconcile.following import Followed, take
from modelyard.routing.objects import ROUTES
from modelyard.routing.rolling import (
    MEMORY,
    ROLLED_OUT,
    WISH,
    RouteReading,
    RouteRollOut,
    RouteRollOutMemory,
    RouteWatch,
)
from modelyard.routing.route_roll_out import INVALID, RouteRollOuts, RouteStanding
from tasks.acting import AGAIN
from tasks.journal import ProgressBar, cells, show, unformatted
from tasks.stage import RETRIED, STAGE


@dataclass(eq=False)
class RollingRoutes:
    """ModelRoutes as a run follows them. ``routers`` is the namespace of the routers, whose metrics are read."""

    cluster: Cluster
    routers: str
    seen: Followed[RouteStanding] = field(default_factory=Followed)
    readings: dict[Key, RouteReading] = field(default_factory=dict)
    lifecycle: RouteRollOuts = field(init=False)

    def __post_init__(self) -> None:
        """The lifecycle leaves here what it looked at, and finds what was measured."""
        self.lifecycle = RouteRollOuts(PrometheusSettings().base_url, self.readings, self.seen)


@dataclass(frozen=True, slots=True)
class RouteEnd:
    """How a route's roll-out stands at the end of a run: what its condition says."""

    key: Key
    reason: str
    message: str


@task(
    name="foresee",
    description="Check what is wished, and show the weights of each step.",
    timeout_seconds=120,
    **RETRIED,
)
async def foresee(rolling: RollingRoutes, key: Key, wish: RouteRollOut | None) -> RouteStanding | None:
    """How the route stands and what its steps would be, with this wish or its own; ``None``: it has none."""
    given = {key: wish.text} if wish is not None else {}
    looks = RouteRollOuts(rolling.lifecycle.prometheus, given=given)
    await rolling.cluster.get(ROUTES, key.name, key.namespace)
    await look(rolling.cluster, looks, {key.namespace}, [key])
    found = looks.seen.get(key)
    if found is not None:
        lines = [f"## ModelRoute {key}", "", *(f"- {unformatted(one)}" for one in found.ladder)]
        text = "\n".join([*lines, unformatted(found.problem)])
        await show(MarkdownArtifact(key="roll-out-changes", markdown=text, description="The weights of each step"))
    return found


@task(
    name="begin",
    description="Let this run work on the route, and write down what is wished.",
    timeout_seconds=120,
    **RETRIED,
)
async def begin(rolling: RollingRoutes, key: Key, wish: RouteRollOut | None, here: RouteStanding, run: str) -> None:
    """The run takes the route over. What went back before is tried anew; what is under way goes on."""
    current = await rolling.cluster.get(ROUTES, key.name, key.namespace)
    also = {WISH: wish.text} if wish is not None else {}
    afresh = here.memory.ended not in ("", ROLLED_OUT)
    await take(rolling.cluster, current, ROUTES, run, {**also, **({MEMORY: ""} if afresh else {})})


@task(name="weigh", description="Set weights step by step, by what was measured, or those of before.", **RETRIED)
async def weigh(
    rolling: RollingRoutes, keys: list[Key], run: str, patience: float, bar: ProgressBar, by_hand: bool = False
) -> Acted:
    """Have it done, for so many seconds; what is not at its end then, another run goes on with.

    By hand it also stays for what waits for something else, such as a server without a ready pod.
    """
    watching = asyncio.gather(_follow(rolling, keys, bar), _measure(rolling, keys))
    end = time.monotonic() + patience
    try:
        while True:
            acted = await act(rolling.cluster, rolling.lifecycle, keys, run, max(0.0, end - time.monotonic()))
            looks = [rolling.seen.get(key) for key in acted.settled]
            waits = any(look is not None and not look.problem and not look.memory.ended for look in looks)
            if not by_hand or not waits or time.monotonic() + AGAIN >= end:
                return acted
            await asyncio.sleep(AGAIN)
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching


async def _measure(rolling: RollingRoutes, keys: list[Key]) -> None:
    while True:
        watches = [here.watch for key in keys if (here := rolling.seen.get(key)) is not None and here.watch is not None]
        if watches:
            readings = await measure(rolling.routers, watches, rolling.cluster.now())
            rolling.readings.update(zip((watch.route for watch in watches), readings, strict=True))
        await asyncio.sleep(min((one.every for one in watches), default=1.0))


@task(
    name="measure",
    description="Read from Prometheus what the routers sent where, and what came of it.",
    timeout_seconds=60,
    **STAGE,
)
async def measure(routers: str, watches: list[RouteWatch], at: float) -> list[RouteReading]:
    """Return the readings of each step until ``at`` (epoch seconds), or why there are none."""
    return await asyncio.gather(*(_reading(routers, one, at) for one in watches))


async def _reading(routers: str, watch: RouteWatch, at: float) -> RouteReading:
    mine, theirs = watch.spans(at)
    try:
        async with Prometheus(PrometheusSettings()) as prometheus:
            new, old = await asyncio.gather(
                read_routed(prometheus, routers, watch.route, (watch.new,), *mine),
                read_routed(prometheus, routers, watch.route, watch.old, *theirs),
            )
            return RouteReading(at, watch.since, new, old)
    except PrometheusError as error:
        return RouteReading(at, watch.since, problem=str(error))


async def _follow(rolling: RollingRoutes, keys: list[Key], bar: ProgressBar) -> None:
    """Tell where it is."""
    log, said = get_run_logger(), dict[Key, str]()
    while True:
        for key in keys:
            here = rolling.seen.get(key)
            if here is not None and here.says and said.get(key) != here.says:
                said[key] = here.says
                bar.tell(str(key), 1.0 if here.memory.ended else here.percent / 100)
                log.info("%s: %s", key, here.says)
        await rolling.seen.moved(5.0)


@task(name="report", description="The table of steps, and how each route stands.", timeout_seconds=120, **STAGE)
async def report(rolling: RollingRoutes, keys: list[Key]) -> list[RouteEnd]:
    """Tell people; how each stands."""
    ends, rows = [], []
    for key in keys:
        here = rolling.seen.get(key)
        if here is None:
            ends.append(RouteEnd(key, "", "there is no such ModelRoute, or nothing is wished of it"))
            continue
        memory: RouteRollOutMemory = here.memory
        rows += [cells({"route": str(key), "step": n, "what came of it": one}) for n, one in enumerate(memory.said, 1)]
        ends.append(RouteEnd(key, INVALID if here.problem else memory.ended, here.says))
    if rows:
        await show(TableArtifact(key="roll-out-steps", description="What came of each step", table=rows))
    return ends
