"""The expected load on an onboarded service: simulated, and for a short time on the service itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from modelyard.benchmarks.jobs import is_of_namespace
from modelyard.cluster import Cluster, Forbidden, NotFound
from modelyard.engine import EngineConfig
from modelyard.metrics.endpoints import model_names, request_models
from modelyard.objects import DEPLOYMENTS, SERVICES, cut, mapping
from modelyard.onboarding.planning import LoadCheck, OnboardStanding, load_check
from modelyard.replay.backtest import steady, steady_load
from modelyard.traffic import Endpoint
from modelyard.traffic.clients import Replay, ReplaySettings, columns, open_session
from modelyard.traffic.traces import Trace
from modelyard.workloads.rendering import ENGINE, component

SHOWN = 200
"""Characters that are shown of a URL in a status."""
SIMULATED = 3000
"""Requests of the simulated load, where they come in less than two minutes: of those."""
MOST_SIMULATED = 200_000
ANSWER_WITHIN = 30.0
"""Seconds for which a request of the check may take longer than its time."""


def simulate_load(standing: OnboardStanding, trace: Trace | None) -> LoadCheck:
    """Replay the trace, or a steady load, on all replicas in the simulator, on the fitted profile."""
    asked, best = standing.asked, standing.chosen
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


async def check_service(cluster: Cluster, standing: OnboardStanding, seconds: float) -> LoadCheck:
    """Put the expected load on the service, through its URL; of it, the share of the replicas that are ready."""
    asked, best = standing.asked, standing.chosen
    url, why = await service_address(cluster, standing.found.there["InferenceService", asked.name], asked.namespace)
    workload = await cluster.get(DEPLOYMENTS, component(asked.name, ENGINE), asked.namespace)
    replicas = max(1, int((workload.get("status") or {}).get("readyReplicas") or 0))
    rate = asked.rate * min(1.0, replicas / best.replicas)
    compression = asked.time_compression
    trace = steady_load(rate, asked.prompt_tokens, asked.output_tokens, seconds * compression)
    served, why = ([], why) if why else await served_models(url)
    model = standing.found.served or asked.name
    if why:
        why = f"{url} cannot be asked from here: {why}"
    elif model not in served:
        why = f"{url} serves {', '.join(served)[:500] or 'nothing'}, not {model}, by which it is to be autoscaled"
    if why:
        return LoadCheck("checked", rate, replicas, 0.0, 0, 0, 0.0, 0.0, why)

    async def there() -> list[Endpoint]:
        return [Endpoint(asked.name, url)]

    wait, longest = ANSWER_WITHIN * compression, (seconds + ANSWER_WITHIN) * compression
    settings = ReplaySettings(model, compression, endpoint_wait=wait, request_timeout=longest, connect_anew=True)
    replay = Replay(trace, there, settings)
    return load_check("checked", asked, rate, replicas, trace.duration, columns(await replay.run()))


async def service_address(cluster: Cluster, service: Mapping[str, Any], namespace: str) -> tuple[str, str]:
    """Return the URL of an InferenceService, and why the worker must not send anything there; empty where it may.

    Tenants write statuses and Services, and the worker reaches what they do not: other tenants' services, Prefect, the
    addresses of the cloud. So the URL has to be that of a Service that selects pods of the namespace.
    """
    status = service.get("status") or {}
    offered = (status.get("url"), mapping(status.get("address")).get("url"))
    urls = [url.rstrip("/") for url in offered if isinstance(url, str) and url]
    url = next((url for url in urls if is_of_namespace(url, namespace)), None)
    if url is None:
        return cut((urls or ["its status"])[0], SHOWN), f"that is no Service of namespace {namespace}"
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


async def served_models(url: str) -> tuple[list[str], str]:
    """Return the models that answer there, or why it cannot be asked; a redirection is not followed."""
    try:
        async with open_session() as session:
            return model_names(json.loads(await request_models(session, url, ANSWER_WITHIN))), ""
    except (TimeoutError, aiohttp.ClientError, OSError, ValueError, RecursionError) as error:
        return [], f"{type(error).__name__}: {str(error)[:200]}"
