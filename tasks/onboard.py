"""The steps of an onboarding: where it begins, having it done, one step's part, what holds under load, what is told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from prefect import get_run_logger, task
from prefect.artifacts import MarkdownArtifact

from modelyard.benchmarks.targets import is_of_namespace
from modelyard.cluster import CONFIG_MAPS, DEPLOYMENTS, Cluster, Forbidden, NotFound
from modelyard.engine.config import EngineConfig
from modelyard.objects import Key
from modelyard.objects.documents import MAX_TEXT, cut
from modelyard.objects.kinds import SERVICES
from modelyard.onboarding.choose import Assessed
from modelyard.onboarding.expected import class_targets, expected
from modelyard.onboarding.following import OnboardRefused, OnboardRun, take_over
from modelyard.onboarding.report import (
    LoadCheck,
    StepState,
    conclusion,
    load_check,
    markdown,
    spent,
    step_states,
    table,
)
from modelyard.onboarding.request import OnboardRequest
from modelyard.reconcile.acting import Acted, act
from modelyard.replay.steady import steady, steady_load
from modelyard.traffic.replay import Replay, ReplaySettings, columns, open_session
from modelyard.traffic.router import Endpoint
from modelyard.traffic.trace import Trace, read_trace
from modelyard.workloads.names import ENGINE, component
from tasks.journal import ProgressBar, show
from tasks.stage import RETRIED, STAGE

LOOK = 0.5
"""Seconds between two looks at what the plan saw."""
MOST_SAID = 200
"""Characters of a step's message that are logged; the object's status has all of it."""
SIMULATED = 3000
"""Requests of the simulated load, where they come in less than two minutes: of those."""
MOST_SIMULATED = 200_000
PATIENCE = 30.0
"""Seconds for which a request of the check may take longer than its time."""


class StepFailed(Exception):
    """A step did not come to its end; the message says why."""


@task(name="expect", description="Read the trace and the service class, where there are such.", **RETRIED)
async def expect(
    cluster: Cluster, path: Path | None, service_class: str | None, namespace: str, model: str, home: str
) -> tuple[dict[str, float], Trace | None]:
    """What they say of load and targets, and the trace. Raises ``OnboardRefused`` and ``TraceInputError``."""
    found: dict[str, float] = {}
    trace = None
    if path is not None:
        trace = await asyncio.to_thread(read_trace, path)
        found |= expected(trace)
    if service_class is not None:
        name, _, key = service_class.partition("/")
        maps: dict[Key, dict[str, str]] = {}
        for space in dict.fromkeys((namespace, home)):
            with suppress(NotFound):
                maps[Key(space, name)] = (await cluster.get(CONFIG_MAPS, name, space)).get("data") or {}
        targets, why = class_targets(maps, namespace, home, name, key, model)
        if why:
            raise OnboardRefused(why)
        found |= targets
    return found, trace


@task(
    name="begin",
    description="Make the ConfigMap that stands for the onboarding, or go on with the one there is.",
    timeout_seconds=120,
    **RETRIED,
)
async def begin(on: OnboardRun, run: str) -> None:
    """Let this run work on it. Raises ``OnboardRefused``."""
    if not await take_over(on, run):
        get_run_logger().info("ConfigMap %s is there: going on with what was begun", on.lifecycle.key)


@task(name="carry out", description="Make and remove what comes next, until nothing is left to do.", **RETRIED)
async def carry_out(on: OnboardRun, run: str, patience: float) -> Acted:
    """Have it done; after so many seconds it is enough that there is nothing to write."""
    return await act(on.cluster, on.lifecycle, [on.lifecycle.key], run, patience)


@task(name="step", task_run_name="{name}", description="Follow one step to its end.", **STAGE)
async def step(on: OnboardRun, name: str, bar: ProgressBar, running: asyncio.Future[Acted]) -> str:
    """How it ended, in words. Raises ``StepFailed``."""
    log, said = get_run_logger(), ""
    bar.tell(name, 0.0)
    while True:
        over, here = running.done(), on.here
        now = step_states(here).get(name) if here is not None else None
        if now is not None and now.message and now.message != said:
            said = now.message
            log.info("%s: %s", name, cut(said, MOST_SAID))
        if now is not None and now.state in ("done", "failed"):
            bar.tell(name, 1.0)
            return _ended(now)
        if here is not None and here.steps.problem:
            raise StepFailed(here.steps.problem)
        if over:
            raise StepFailed(f"{name} goes on without this run")
        await asyncio.wait([running], timeout=LOOK)


def _ended(now: StepState) -> str:
    if now.state == "failed":
        raise StepFailed(now.message)
    return now.message


@task(name="foresee", description="Replay the expected load in the simulator, on the fitted profile.", **STAGE)
async def foresee(on: OnboardRun, trace: Trace | None) -> LoadCheck:
    """What its clients would see on all replicas."""
    asked, best = on.asked, _best(on)
    found = await asyncio.to_thread(_foreseen, asked, best, trace)
    get_run_logger().info("%s", found)
    return found


def _foreseen(asked: OnboardRequest, best: Assessed, trace: Trace | None) -> LoadCheck:
    speed = best.speed
    assert speed is not None
    if trace is None:
        seconds = max(SIMULATED / asked.rate, min(120.0, MOST_SIMULATED / asked.rate))
        trace = steady_load(asked.rate, asked.prompt_tokens, asked.output_tokens, seconds)
    longest = int((trace.prompt + trace.output).max(initial=0))
    room = max(speed.max_batch * (asked.prompt_tokens + asked.output_tokens + 32), longest + 32)
    engine = EngineConfig(
        *(speed.engine or (speed.alpha, speed.beta, speed.gamma, speed.delta)),
        max_num_seqs=speed.max_batch,
        max_num_batched_tokens=max(2048, speed.max_batch),
        kv_cache_tokens=room,
    )
    results = steady(engine, best.replicas, trace)
    return load_check("simulated", asked, trace.rate, best.replicas, trace.duration, results)


@task(name="check", description="Put the expected load on the service, through its URL, for a short time.", **STAGE)
async def check(on: OnboardRun, seconds: float) -> LoadCheck:
    """What its clients saw: of the load, the share of the replicas that are there."""
    asked, best, here = on.asked, _best(on), on.here
    assert here is not None
    url, why = await service_address(on.cluster, here.found.there["InferenceService", asked.name], asked.namespace)
    workload = await on.cluster.get(DEPLOYMENTS, component(asked.name, ENGINE), asked.namespace)
    replicas = max(1, int((workload.get("status") or {}).get("readyReplicas") or 0))
    rate = asked.rate * min(1.0, replicas / best.replicas)
    compression = asked.time_compression
    trace = steady_load(rate, asked.prompt_tokens, asked.output_tokens, seconds * compression)
    served: list[str] = []
    if not why:
        served, why = await _served(url)
    if why:
        return LoadCheck("checked", rate, replicas, 0.0, 0, 0, 0.0, 0.0, f"{url} cannot be asked from here: {why}")

    async def there() -> list[Endpoint]:
        return [Endpoint(asked.name, url)]

    model = here.found.served or asked.name
    if model not in served:
        why = f"{url} serves {', '.join(served)[:500] or 'nothing'}, not {model}, by which it is to be autoscaled"
        return LoadCheck("checked", rate, replicas, 0.0, 0, 0, 0.0, 0.0, why)
    wait, longest = PATIENCE * compression, (seconds + PATIENCE) * compression
    settings = ReplaySettings(model, compression, endpoint_wait=wait, request_timeout=longest, connect_anew=True)
    replay = Replay(trace, there, settings)
    found = load_check("checked", asked, rate, replicas, trace.duration, columns(await replay.run()))
    get_run_logger().info("%s", found)
    return found


async def service_address(cluster: Cluster, service: Mapping[str, Any], namespace: str) -> tuple[str, str]:
    """Return the URL of an InferenceService, and why the worker must not send anything there; empty where it may.

    Tenants write statuses and Services, and the worker reaches what they do not: other tenants' services, Prefect, the
    addresses of the cloud. So the URL has to be that of a Service that selects pods of the namespace.
    """
    status = service.get("status") or {}
    inside = status.get("address")
    offered = [status.get("url"), inside.get("url") if isinstance(inside, Mapping) else None]
    urls = [url.rstrip("/") for url in offered if isinstance(url, str) and url]
    url = next((url for url in urls if is_of_namespace(url, namespace)), None)
    if url is None:
        return cut((urls or ["its status"])[0], MOST_SAID), f"that is no Service of namespace {namespace}"
    name = (urlsplit(url).hostname or "").partition(".")[0]
    try:
        spec = (await cluster.get(SERVICES, name, namespace)).get("spec") or {}
    except NotFound:
        return url, f"there is no Service {namespace}/{name}"
    except Forbidden:
        return url, f"Service {namespace}/{name} may not be read; the rights are in rbac-onboarding.yaml"
    if spec.get("type") == "ExternalName" or not spec.get("selector"):
        return url, f"Service {namespace}/{name} selects no pods of its namespace"
    return url, ""


async def _served(url: str) -> tuple[list[str], str]:
    """The models that answer there, or why it cannot be asked. What a tenant runs there sends nobody elsewhere."""
    try:
        text, models = b"", f"{url}/v1/models"
        async with (
            asyncio.timeout(PATIENCE),
            open_session() as session,
            session.get(models, allow_redirects=False) as answer,
        ):
            while len(text) <= MAX_TEXT and (piece := await answer.content.readany()):
                text += piece
        if answer.status != 200 or len(text) > MAX_TEXT:
            return [], f"HTTP {answer.status}, {len(text)} bytes or more"
        return [str(one["id"])[:512] for one in json.loads(text)["data"][:20]], ""
    except (TimeoutError, aiohttp.ClientError, OSError, LookupError, TypeError, ValueError, RecursionError) as error:
        return [], f"{type(error).__name__}: {str(error)[:200]}"


@task(name="publish", description="The report: candidates, objects, what it cost, what holds.", **STAGE)
async def publish(on: OnboardRun, checks: list[LoadCheck]) -> str:
    """Tell people; how it stands, in a sentence."""
    here, log = on.here, get_run_logger()
    if here is None:
        return "it is gone: somebody has deleted what stands for it"
    if here.steps.verdict is not None:
        for line in table(here.steps.verdict.assessed):
            log.info("%s", line)
        log.info("To find out took %.1f replica-minutes, which cost %.3g", *spent(here.asked, here.memory))
    key = f"onboarding-{on.asked.name}"
    await show(MarkdownArtifact(key=key, markdown=markdown(here, checks), description=f"Onboarding of {on.asked.name}"))
    return conclusion(here, checks)


def _best(on: OnboardRun) -> Assessed:
    here = on.here
    assert here is not None
    assert here.steps.verdict is not None
    assert here.steps.verdict.chosen is not None
    return here.steps.verdict.chosen
