"""An onboarding's own tasks: expected load, start, simulation, check under load, report. Its steps are shared."""

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
from modelyard.onboarding.lifecycle import Onboarding
from modelyard.onboarding.objects import LABEL, order_key
from modelyard.onboarding.plan import name_of
from modelyard.onboarding.progress import OnboardStanding
from modelyard.onboarding.report import (
    LoadCheck,
    conclusion,
    load_check,
    markdown,
    spent,
    table,
)
from modelyard.onboarding.request import OnboardRequest
from modelyard.onboarding.start import OnboardRefused, retry_failed, take_over
from modelyard.reconcile.dispatch import Claim
from modelyard.reconcile.plan import CLAIM
from modelyard.reconcile.run_view import Superseded
from modelyard.replay.steady import steady, steady_load
from modelyard.traffic.replay import Replay, ReplaySettings, columns, open_session
from modelyard.traffic.router import Endpoint
from modelyard.traffic.trace import Trace, read_trace
from modelyard.workloads.names import ENGINE, component
from tasks.children import is_live, retry_child
from tasks.journal import show
from tasks.observe import CHILDREN
from tasks.stage import RETRIED, STAGE
from tasks.steps import OpenRun, RunRef, open_run

MOST_SAID = 200
"""Characters of a step's message that are logged; the object's status has all of it."""
SIMULATED = 3000
"""Requests of the simulated load, where they come in less than two minutes: of those."""
MOST_SIMULATED = 200_000
PATIENCE = 30.0
"""Seconds for which a request of the check may take longer than its time."""


@task(
    name="resolve load",
    task_run_name="resolve load",
    description="Read the expected load from the trace and the target from the service class, where these are given.",
    **RETRIED,
)
async def resolve_load(
    ref: RunRef, path: Path | None, service_class: str | None, namespace: str, model: str
) -> dict[str, float]:
    """Return what they say of load and target. Raises ``OnboardRefused`` and ``TraceInputError``."""
    values: dict[str, float] = {}
    if path is not None:
        values |= expected(await asyncio.to_thread(read_trace, path))
    if service_class is not None:
        name, _, key = service_class.partition("/")
        maps: dict[Key, dict[str, str]] = {}
        async with open_run(ref) as run:
            for space in dict.fromkeys((namespace, ref.home)):
                with suppress(NotFound):
                    maps[Key(space, name)] = (await run.view.cluster.get(CONFIG_MAPS, name, space)).get("data") or {}
        targets, why = class_targets(maps, namespace, ref.home, name, key, model)
        if why:
            raise OnboardRefused(why)
        values |= targets
    return values


@task(
    name="start",
    task_run_name="start {asked.name}",
    description="Create the ConfigMap that stands for the onboarding, or go on with the existing one.",
    timeout_seconds=120,
    **RETRIED,
)
async def start(ref: RunRef, asked: OnboardRequest, attempt: int) -> Key:
    """Give the run the right to work on the onboarding; return the key of its ConfigMap.

    What failed of an existing one is tried again. ``attempt`` counts the times that the run has begun: from the second
    on, it leaves the onboarding to another run that works on it. Raises ``OnboardRefused`` and ``Superseded``.
    """
    key = order_key(asked)
    async with open_run(ref) as run:
        cluster = run.view.cluster
        if attempt > 1 and (rival := await _live_rival(cluster, key, ref.run)):
            raise Superseded(f"{rival} works on ConfigMap {key}")
        if not await take_over(cluster, asked, ref.run):
            get_run_logger().info("ConfigMap %s exists: going on with what was begun", key)
            await retry_failed(cluster, asked, f"{ref.run.rpartition('/')[2]}-{attempt}")
            await _retry_children(run, asked)
    return key


async def _live_rival(cluster: Cluster, key: Key, run: str) -> str:
    """Return the other run that works on the onboarding now; empty for none."""
    try:
        stored = await cluster.get(CONFIG_MAPS, key.name, key.namespace)
    except NotFound:
        return ""
    claim = Claim.read((stored["metadata"].get("annotations") or {}).get(CLAIM) or "")
    return claim.run if claim is not None and claim.run != run and await is_live(claim.run) else ""


async def _retry_children(run: OpenRun, asked: OnboardRequest) -> None:
    lifecycle, key = run.view.lifecycle, order_key(asked)
    assert isinstance(lifecycle, Onboarding)
    for child in CHILDREN.values():
        for obj in await run.view.cluster.list(child.kind, asked.namespace, f"{LABEL}={asked.name}"):
            if (obj.get("status") or {}).get("state") == "Failed":
                lifecycle.retried.add((key, name_of(obj)))
            await retry_child(run.view.cluster, child, obj)


@task(
    name="simulate",
    task_run_name="simulate the expected load",
    description="Replay the expected load in the simulator, on the fitted profile.",
    **STAGE,
)
async def simulate(ref: RunRef, key: Key, path: Path | None) -> LoadCheck:
    """Return what clients would see on all replicas."""
    async with open_run(ref) as run:
        here: OnboardStanding = run.view.details(key)
    trace = await asyncio.to_thread(read_trace, path) if path is not None else None
    result = await asyncio.to_thread(_simulated, here.asked, _chosen(here), trace)
    get_run_logger().info("%s", result)
    return result


def _simulated(asked: OnboardRequest, best: Assessed, trace: Trace | None) -> LoadCheck:
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


@task(
    name="verify",
    task_run_name="verify under load",
    description="Put the expected load on the service, through its URL, for a short time.",
    **STAGE,
)
async def verify(ref: RunRef, key: Key, seconds: float) -> LoadCheck:
    """Return what its clients saw; of the load, they send the share of the replicas that are ready."""
    async with open_run(ref) as run:
        return await _verified(run.view.cluster, run.view.details(key), seconds)


async def _verified(cluster: Cluster, here: OnboardStanding, seconds: float) -> LoadCheck:
    asked, best = here.asked, _chosen(here)
    url, why = await service_address(cluster, here.found.there["InferenceService", asked.name], asked.namespace)
    workload = await cluster.get(DEPLOYMENTS, component(asked.name, ENGINE), asked.namespace)
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


@task(
    name="report",
    task_run_name="report",
    description="Show the candidates, the objects, what finding out cost, and what holds under load.",
    **STAGE,
)
async def report(ref: RunRef, key: Key, checks: list[LoadCheck]) -> str:
    """Return how the onboarding stands, in a sentence."""
    log = get_run_logger()
    async with open_run(ref) as run:
        here: OnboardStanding | None = run.view.details(key)
    if here is None:
        return f"ConfigMap {key}, which stands for the onboarding, was deleted"
    if here.steps.verdict is not None:
        for line in table(here.steps.verdict.assessed):
            log.info("%s", line)
        log.info("Probes took %.1f replica-minutes, which cost %.3g", *spent(here.asked, here.memory))
    name, text = here.asked.name, markdown(here, checks)
    await show(MarkdownArtifact(key=f"onboarding-{name}", markdown=text, description=f"Onboarding of {name}"))
    return conclusion(here, checks)


def _chosen(here: OnboardStanding) -> Assessed:
    assert here.steps.verdict is not None
    assert here.steps.verdict.chosen is not None
    return here.steps.verdict.chosen
