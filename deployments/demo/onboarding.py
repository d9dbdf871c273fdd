"""Act 0: a model in a bucket becomes a service of the right size, on one of two accelerators, by the flow ``onboard``.

Does what a user would and checks what it is told. Its engines are those of the acts, as much faster than life as they
are; they are measured for a moment only.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from deployments.demo.manifests import before_onboarding
from deployments.demo.scenario import FLOOR, SLO_ITL, SLO_TTFT, Copy, Scenario
from deployments.demo.sources import Sources, small_model
from deployments.demo.stage import MISTRAL, Show, Stage, allowed
from deployments.stack import PrefectStack
from modelyard.autoscaling.kinds import VARIANTS
from modelyard.autoscaling.provenance import engine_of, provenance
from modelyard.benchmarks.world import BENCHMARK_JOBS
from modelyard.cluster import CONFIG_MAPS, Cluster, Object
from modelyard.local.router import install
from modelyard.local.settings import NodeGroup, default_nodes
from modelyard.local.stack import LocalStack
from modelyard.models.names import BASE_MODELS
from modelyard.objects.documents import counted
from modelyard.objects.kinds import PODS
from modelyard.onboarding.expected import expected
from modelyard.onboarding.plan import ready
from modelyard.traffic.replay import RequestFailed, chat_body, open_session, send
from modelyard.traffic.trace import Trace
from modelyard.workloads.components import INITIAL_REPLICAS
from modelyard.workloads.names import SERVICE
from modelyard.workloads.world import INFERENCE_SERVICES

SELECTOR = {"shop.example/models": "yes"}
"""Of the nodes that receive the files."""
PROMPT, TOKENS = 100, 20
"""Of each request at the end, and how many there are."""
ASKED = 10
LEVELS, REQUESTS = (1, 32), 40
SHORTENED = (
    f"measured shortly: {REQUESTS} requests at {LEVELS[0]} and at {LEVELS[1]} at a time, on each of two accelerators;",
    "without --level and --requests: 300 at 1, 8, 16, 32, and where else the figures need it.",
)


def nodes(scenario: Scenario) -> list[NodeGroup]:
    """A large node of each accelerator, which receives the files."""
    return [
        group.model_copy(update={"name": f"{group.name}-shop", "count": 1, "gpus": 64, "labels": SELECTOR})
        for group in default_nodes()
        if any(group.product == variant.product for variant in scenario.variants)
    ]


def request(uri: str, endpoint: str, copy: Copy, scenario: Scenario, trace: Trace) -> dict[str, Any]:
    """What is asked for, as the flow's parameters: the load is the busiest minute of the trace."""
    return {
        "uri": uri,
        "name": copy.service,
        "namespace": copy.namespace,
        "parameters": {"endpoint": endpoint},
        "node_selector": SELECTOR,
        "prices": {variant.accelerator: float(variant.cost) / variant.gpus for variant in scenario.variants},
        "ttft": SLO_TTFT,
        "itl": SLO_ITL,
        **expected(trace),
        "results": "pvc://results/onboarding",
        "levels": list(LEVELS),
        "requests": REQUESTS,
        "minutes": 1,
        "min_replicas": FLOOR,
        "check_seconds": 5,
        "time_compression": scenario.compression,
    }


def command(given: dict[str, Any]) -> list[str]:
    """The same as a user types it."""
    words = ["modelyard", "onboard", given["uri"], "-n", given["namespace"]]
    names = {"parameters": "parameter", "prices": "price", "levels": "level"}
    for field, value in given.items():
        if field in ("uri", "namespace"):
            continue
        option = f"--{names.get(field, field)}".replace("_", "-")
        many = [f"{key}={one}" for key, one in value.items()] if isinstance(value, dict) else value
        for one in many if isinstance(many, list) else [many]:
            words += [option, str(one)]
    return words


async def onboarded(
    show: Show,
    scenario: Scenario,
    trace: Trace,
    out: Path,
    served: dict[str, Copy],
    stack: LocalStack,
    prefect: PrefectStack,
    cluster: Cluster,
) -> None:
    """Act 0, beside a bucket of its own: ``served``, by namespace, are the copies that are services, as they are then.

    Raises ``DemonstrationFailed``: there is none.
    """
    show.console.rule("Act 0: a model in a bucket becomes a service of the right size", align="left")
    flows = asyncio.create_task(asyncio.to_thread(prefect.start))
    os.environ["PREFECT_API_URL"] = prefect.server.api_url
    files = {f"{MISTRAL}/{k}": v for k, v in small_model("mistral", "MistralForCausalLM", 2).items()}
    async with Sources({}, {"models": files}) as sources:
        await cluster.create(CONFIG_MAPS, allowed(sources))
        await install(cluster, arguments=["--access-log", "none"])
        stage = Stage(stack, prefect, cluster, sources, show, flows)
        try:
            for copy in scenario.copies:
                if copy.service:
                    served[copy.namespace] = await play(stage, copy, scenario, trace, out)
        finally:
            await flows
    faster = f"{scenario.compression:g} times faster than life"
    show.console.rule(
        f"Acts 1 and 2: real traffic, {faster}, for that service and for two copies of a pair", align="left"
    )


async def play(stage: Stage, copy: Copy, scenario: Scenario, trace: Trace, out: Path) -> Copy:
    """From a URI to a service that answers; the copy with where it is asked, and what was chosen."""
    show, space, name = stage.show, copy.namespace, copy.service
    path = out / "onboarding.yaml"
    path.write_text(yaml.safe_dump_all(before_onboarding(space, scenario), sort_keys=False), encoding="utf-8")
    await show.run("kubectl", "apply", "-f", str(path))
    for line in SHORTENED:
        show.say(line)
    show.say(f"The engines run {scenario.compression:g} times faster than life, and are measured so: by that much")
    show.say("their profile is slower. Targets, load and profile are as in life, as in the acts after it.")
    await stage.flows
    said = await show.live(*command(request(f"s3://models/{MISTRAL}", stage.sources.url, copy, scenario, trace)))
    get, listed = stage.cluster.get, stage.cluster.list
    model, autoscaling = await get(BASE_MODELS, name, space), await get(VARIANTS, name, space)
    state = (model.get("status") or {}).get("state")
    show.claim(f"the model's files are on their nodes: BaseModel {name} is {state}", state == "Ready")
    found = await listed(BENCHMARK_JOBS, space)
    jobs = {one["metadata"]["name"]: (one.get("status") or {}).get("state") for one in found}
    measured = ", ".join(f"{name} {state}" for name, state in jobs.items())
    show.claim(f"each candidate was measured: {measured}", len(jobs) == 2 and {*jobs.values()} == {"Completed"})
    services = [one["metadata"]["name"] for one in await listed(INFERENCE_SERVICES, space)]
    show.claim(f"the probes are gone: what is left is InferenceService {', '.join(services)}", services == [name])
    spec = autoscaling["spec"]
    variant = next(one for one in scenario.variants if one.accelerator == spec["accelerator"])
    chosen = f"on-{variant.accelerator.lower()}"
    same = f"chosen: {chosen}," in said
    show.claim(f"{chosen} was chosen, and its accelerator is {variant.accelerator}", same)
    show.claim(*await placed(stage, copy, variant.accelerator))
    fitted = {key: value for part in spec["variantProfile"]["perfParms"].values() for key, value in part.items()}
    text = ", ".join(f"{key} {float(value):.3g}" for key, value in fitted.items())
    engine = engine_of(provenance(autoscaling), fitted)
    behind = ", ".join(f"{value:.3g}" for value in engine or ())
    true = ", ".join(f"{value:g}" for value in (*variant.decode, *variant.prefill))
    show.claim(f"it is autoscaled on the profile that was fitted, in ms: {text}", len(fitted) == 4)
    show.claim(f"and on the engine behind it: {behind or 'unknown'} (in truth {true})", engine is not None)
    service = await get(INFERENCE_SERVICES, name, space)
    show.claim(*await asked(service))
    made = counted(int(service["metadata"]["annotations"][INITIAL_REPLICAS]), "replica")
    show.say(f"It was made with {made}, which its busiest minute needs. The traffic begins all at")
    show.say(f"once: it keeps {FLOOR} at least, as it was asked for; the others begin with one of each engine.")
    return replace(copy, url=service["status"]["url"].rstrip("/"), chosen=variant.name)


async def placed(stage: Stage, copy: Copy, accelerator: str) -> tuple[str, bool]:
    """Where its pods are, and whether those nodes have the accelerator."""
    pods = await stage.cluster.list(PODS, copy.namespace, label_selector=f"{SERVICE}={copy.service}")
    there = [one["spec"] for one in pods if "deletionTimestamp" not in one["metadata"]]
    nodes = [spec["nodeName"] for spec in there if "nodeName" in spec]
    right = all(node.startswith(accelerator.lower()) for node in nodes)
    return f"it runs there: {counted(len(nodes), 'pod')} on {', '.join(sorted({*nodes}))}", bool(nodes) and right


async def asked(service: Object) -> tuple[str, bool]:
    """What came of some requests through its URL, one after the other."""
    name, url, answered, problem = service["metadata"]["name"], service["status"]["url"], 0, ""
    async with open_session() as session:
        for _ in range(ASKED):
            try:
                async with asyncio.timeout(60):
                    came = await send(session, url, chat_body(name, PROMPT, TOKENS))
                answered += came.output_tokens == TOKENS
            except (RequestFailed, TimeoutError, aiohttp.ClientError) as error:
                problem = f"; {type(error).__name__}: {error}"[:200]
    return f"{answered} of {ASKED} requests were answered whole at {url}{problem}", answered == ASKED and ready(service)
