"""``modelyard demo sources``: a model hub and an S3 bucket on this machine, to try out models and onboarding.

They serve the two small models of the demonstrations, substitutes for the models that ``config/samples`` names, and a
bucket for results. ``--allow`` permits the cluster in KUBECONFIG to fetch from them, as an administrator would.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

import yaml

from deployments.demo.scenario import CONTROLLER_NAMESPACE
from deployments.demo.sources import Sources, small_adapter, small_model
from modelyard.cluster import NAMESPACES, AlreadyExists, Cluster, ClusterSettings
from modelyard.cluster.connection import is_loopback
from modelyard.models.settings import CONFIG_MAP, KEY
from modelyard.ports import describe_listen_error


class SourcesError(RuntimeError):
    """The hub and the bucket cannot be served or allowed; the message says what to do."""


LLAMA, MISTRAL = "tiny-llama", "tiny-mistral"
"""The two small models: the first in the hub, the second in the bucket ``models``."""
SAMPLE_MODEL, SAMPLE_ADAPTER, SAMPLE_FOLDER = "meta-llama/Llama-3.1-8B-Instruct", "example/support-tone", "house-model"
LARGE_SAMPLE_MODEL = "meta-llama/Llama-3.3-70B-Instruct"
"""Names of the models in ``config/samples``: three of a hub and a folder of the bucket ``models``."""
RESULTS = "benchmarks"
"""The bucket of results."""


@contextlib.asynccontextmanager
async def small_sources(port: int) -> AsyncIterator[Sources]:
    """Serve a hub and buckets with small models on this loopback port. Raises ``SourcesError``."""
    llama, mistral = small_model("llama", "LlamaForCausalLM", 1), small_model("mistral", "MistralForCausalLM", 2)
    repositories = {
        f"demo/{LLAMA}": llama,
        SAMPLE_MODEL: llama,
        LARGE_SAMPLE_MODEL: llama,
        SAMPLE_ADAPTER: small_adapter(SAMPLE_MODEL),
    }
    models = {f"{folder}/{name}": body for folder in (MISTRAL, SAMPLE_FOLDER) for name, body in mistral.items()}
    sources = Sources(repositories, {"models": MappingProxyType(models), RESULTS: {}}, port)
    async with contextlib.AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(sources)
        except OSError as error:
            raise SourcesError(describe_listen_error("127.0.0.1", port, error)) from None
        yield sources


def allowed(sources: Sources) -> dict[str, Any]:
    """Return the ConfigMap of an administrator: the hub that hf:// means, and the endpoint that s3:// may read."""
    data = {"hubEndpoint": sources.url, "endpoints": [sources.url.removeprefix("http://")]}
    text = yaml.safe_dump({**data, "cpu": "100m", "memory": "256Mi"}, sort_keys=False)
    return {"metadata": {"name": CONFIG_MAP, "namespace": CONTROLLER_NAMESPACE}, "data": {KEY: text}}


async def serve(port: int, allow: bool, say: Callable[[str], None]) -> None:
    """Serve until SIGTERM or an interrupt. Raises ``SourcesError``."""
    task = asyncio.current_task()
    assert task is not None
    for stop in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(stop, task.cancel)
    async with small_sources(port) as sources:
        if allow:
            say(await allow_sources(sources))
        say(f"hub and bucket: {sources.url}")
        say(f"modelyard models add hf://demo/{LLAMA}")
        say(f"modelyard models add s3://models/{MISTRAL} --parameter endpoint={sources.url}")
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()


async def allow_sources(sources: Sources) -> str:
    """Allow a cluster on this machine to fetch models from these sources; return a sentence for the user.

    Raises ``SourcesError`` for any other cluster.
    """
    async with Cluster.connect(ClusterSettings()) as cluster:
        server = cluster.transport.server
        if not is_loopback(urlsplit(server).hostname or ""):
            raise SourcesError(
                f"--allow: the cluster at {server} is not on this machine, its nodes cannot reach 127.0.0.1; set "
                "KUBECONFIG to that of `modelyard local up`"
            )
        with contextlib.suppress(AlreadyExists):
            await cluster.create(NAMESPACES, {"metadata": {"name": CONTROLLER_NAMESPACE}})
        settings = {"apiVersion": "v1", "kind": "ConfigMap", **allowed(sources)}
        await cluster.apply(settings)
    return f"ConfigMap {CONTROLLER_NAMESPACE}/{CONFIG_MAP} allows them"
