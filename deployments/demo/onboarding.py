"""Part 1 of the demonstration: a model in a bucket becomes an autoscaled service on the cheaper suitable accelerator.

Runs ``modelyard onboard`` as a user would and checks the result in the cluster. Measurements are shortened, which the
output states. Engines run ``compression`` times faster than in production, also while they are measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from deployments.demo.console import DemoConsole, ask
from deployments.demo.scenario import FLOOR, NAMESPACE, SERVICE, SLO_ITL, SLO_TTFT, VARIANTS, DemoVariant, Scenario
from deployments.demo.sources import MISTRAL, Sources, allowed
from deployments.profile import ROOT
from modelyard.autoscaling.fleet import VARIANTS as VARIANTS_KIND, engine_of, provenance
from modelyard.benchmarks.jobs import BENCHMARK_JOBS
from modelyard.cluster import Cluster
from modelyard.local import NodeGroup, default_nodes, install
from modelyard.models.delivery import BASE_MODELS
from modelyard.objects import CONFIG_MAPS, PODS, counted
from modelyard.onboarding.planning import expected, ready
from modelyard.traffic.clients import open_session
from modelyard.traffic.traces import Trace
from modelyard.workloads.rendering import INITIAL_REPLICAS, SERVICE as SERVICE_LABEL
from modelyard.workloads.roll_out import INFERENCE_SERVICES

PREREQUISITES = ROOT / "config" / "samples" / "local" / "onboarding.yaml"
SELECTOR = {"shop.example/models": "yes"}
"""Label of the nodes that receive the files."""
PROMPT, TOKENS, REQUESTS = 100, 20, 10
"""Tokens of each request after the onboarding, and the number of requests."""
LEVELS, MEASURED = (1, 32), 20
"""Concurrency levels of the shortened measurement, and requests at each."""


class OnboardedService(NamedTuple):
    """Address of the service, and the variant that the onboarding chose."""

    url: str
    variant: DemoVariant


def nodes() -> list[NodeGroup]:
    """Return a large node of each accelerator, labelled to receive the files."""
    return [
        group.model_copy(update={"name": f"{group.name}-shop", "count": 1, "gpus": 64, "labels": SELECTOR})
        for group in default_nodes()
        if any(group.product == variant.product for variant in VARIANTS)
    ]


def prerequisites(scenario: Scenario) -> Iterator[dict[str, Any]]:
    """Yield the sample prerequisites of an onboarding, with the runtimes' engines replaced by the scenario's."""
    variants = {f"on-{variant.accelerator.lower()}": variant for variant in VARIANTS}
    for document in yaml.safe_load_all(PREREQUISITES.read_text(encoding="utf-8")):
        if variant := variants.get(document["metadata"]["name"]):
            runner = scenario.engine(variant, "--model=$(MODEL_PATH)", "--served-model-name={{.Name}}")
            document["spec"]["engineConfig"]["runner"] = runner
        yield document


def request(uri: str, endpoint: str, scenario: Scenario, trace: Trace) -> dict[str, Any]:
    """Return the parameters of the flow ``onboard``; the expected load is the busiest minute of the trace."""
    return {
        "uri": uri,
        "name": SERVICE,
        "namespace": NAMESPACE,
        "parameters": {"endpoint": endpoint},
        "node_selector": SELECTOR,
        "prices": {variant.accelerator: float(variant.cost) / variant.gpus for variant in VARIANTS},
        "ttft": SLO_TTFT,
        "itl": SLO_ITL,
        **expected(trace),
        "results": "pvc://results/onboarding",
        "levels": list(LEVELS),
        "requests": MEASURED,
        "minutes": 1,
        "min_replicas": FLOOR,
        "check_seconds": 0,
        "time_compression": scenario.compression,
    }


def command(given: dict[str, Any]) -> list[str]:
    """Return the same request as a user types it."""
    words = ["modelyard", "onboard", given.pop("uri")]
    names = {"parameters": "parameter", "prices": "price", "levels": "level"}
    for field, value in given.items():
        many = [f"{key}={text}" for key, text in value.items()] if isinstance(value, dict) else value
        for text in many if isinstance(many, list) else [many]:
            words += [f"--{names.get(field, field)}".replace("_", "-"), str(text)]
    return words


async def onboard_service(
    console: DemoConsole, scenario: Scenario, trace: Trace, out: Path, cluster: Cluster
) -> OnboardedService:
    """Onboard the service from a bucket and check what that left in the cluster. Raises ``ChildFailed``."""
    console.say(
        "The model is in an S3 bucket on this machine. `modelyard onboard` copies its files to the nodes, measures it "
        f"on {' and '.join(variant.accelerator for variant in VARIANTS)}, chooses the cheapest that meets TTFT "
        f"{SLO_TTFT / 1000:g} s and ITL {SLO_ITL} ms, and creates an autoscaled service."
    )
    console.say(
        f"The measurement is short: {MEASURED} requests at a concurrency of {LEVELS[0]} and {LEVELS[1]}. The default "
        "is 300 requests at 1, 8, 16 and 32. Part 2 replaces the load check at the end."
    )
    await install(cluster, arguments=["--access-log", "none"])
    path = out / "onboarding.yaml"
    path.write_text(yaml.safe_dump_all(prerequisites(scenario), sort_keys=False), encoding="utf-8")
    async with Sources() as sources:
        await cluster.create(CONFIG_MAPS, allowed(sources))
        await console.run("kubectl", "apply", "-f", str(path))
        printed = await console.run(*command(request(f"s3://models/{MISTRAL}", sources.url, scenario, trace)))
    return await check_service(console, cluster, printed)


async def check_service(console: DemoConsole, cluster: Cluster, printed: str) -> OnboardedService:
    """Check what the onboarding left in the cluster."""
    space, name = NAMESPACE, SERVICE
    model, autoscaling = await cluster.get(BASE_MODELS, name, space), await cluster.get(VARIANTS_KIND, name, space)
    state = (model.get("status") or {}).get("state")
    console.check(f"Delivered: BaseModel {space}/{name} is {state} on its nodes", state == "Ready")

    jobs = [
        f"{job['metadata']['name']} {job.get('status', {}).get('state')}"
        for job in await cluster.list(BENCHMARK_JOBS, space)
    ]
    measured = len(jobs) == len(VARIANTS) and all(job.endswith(" Completed") for job in jobs)
    console.check(f"Measured: {', '.join(f'BenchmarkJob {job}' for job in jobs)}", measured)

    services = [service["metadata"]["name"] for service in await cluster.list(INFERENCE_SERVICES, space)]
    console.check(f"Cleaned up: only InferenceService {', '.join(services)} is left, no probe", services == [name])

    spec = autoscaling["spec"]
    variant = next(variant for variant in VARIANTS if variant.accelerator == spec["accelerator"])
    runtime = f"on-{variant.accelerator.lower()}"
    console.check(f"Chosen: runtime {runtime} with {variant.accelerator}", f"chosen: {runtime}," in printed)

    pods = await cluster.list(PODS, space, label_selector=f"{SERVICE_LABEL}={name}")
    where = [pod["spec"].get("nodeName", "") for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    placed = bool(where) and all(node.startswith(variant.accelerator.lower()) for node in where)
    console.check(f"Placed: {counted(len(where), 'pod')} on {', '.join(sorted({*where}))}", placed)

    fitted = {key: value for part in spec["variantProfile"]["perfParms"].values() for key, value in part.items()}
    engine = engine_of(provenance(autoscaling), fitted)
    service = ", ".join(f"{key} {float(fitted.get(key, 'nan')):.3g}" for key in ("alpha", "beta", "gamma", "delta"))
    alone = ", ".join(f"{value:.3g}" for value in engine or ())
    simulated = ", ".join(f"{value:g}" for value in (*variant.decode, *variant.prefill))
    console.check(
        f"Profiled in ms: {service}; its engine alone: {alone or 'unknown'} (the simulated engine has {simulated})",
        len(fitted) == 4 and engine is not None,
    )
    served = await cluster.get(INFERENCE_SERVICES, name, space)
    url = served["status"]["url"].rstrip("/")
    async with open_session() as session:
        problems = [await ask(session, url, name, PROMPT, TOKENS) for _ in range(REQUESTS)]
    problem = next((f": {problem}" for problem in problems if problem), "")
    text = f"Serving: {problems.count('')} of {REQUESTS} requests answered at {url}{problem}"
    console.check(text, not problem and ready(served))
    replicas = counted(int(served["metadata"]["annotations"][INITIAL_REPLICAS]), "replica")
    console.say(f"The service starts with {replicas}, enough for its busiest minute, and keeps at least {FLOOR}.")
    return OnboardedService(url, variant)
