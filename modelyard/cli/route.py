"""`modelyard route`: why a request would go where it goes. Nothing is sent."""

from __future__ import annotations

import asyncio
import re
from typing import Annotated

import orjson
import typer

from modelyard.cli.options import Context, Controller, Namespaces, UsageError, check_namespaces
from modelyard.objects import CONTROLLER_NAMESPACE

app = typer.Typer(help="Where requests for a model name go, and why.", add_completion=False, no_args_is_help=True)

REFUSAL = re.compile(r" *[45]\d\d: ")
"""A line with the answer to a request that is not sent to a pod."""


@app.callback()
def _route() -> None:
    pass


@app.command()
def explain(
    model: Annotated[str, typer.Option("-m", "--model", help="The model that the client names.")],
    header: Annotated[list[str] | None, typer.Option("-H", "--header", help="NAME:VALUE of a request; repeat.")] = None,
    path: Annotated[str, typer.Option(help="Path of the request.")] = "/v1/chat/completions",
    prompt: Annotated[str, typer.Option(help="Text of the request, of which its tokens are estimated.")] = "",
    namespace: Namespaces = None,
    controller_namespace: Controller = CONTROLLER_NAMESPACE,
    context: Context = None,
) -> None:
    """Which route, rule and server take a request, and its pods with each scorer's points.

    Engines' metrics are read once, so a latency (a mean between two readings) is not among the points. Exit code 1: the
    request would be refused.
    """
    from modelyard.cluster import Cluster, ClusterSettings
    from modelyard.router.process import EnginePoller, look
    from modelyard.routing import Arrival, Decider, ErrorAnswer, explain as lines

    headers = {}
    for one in header or ():
        name, colon, value = one.partition(":")
        if not colon:
            raise UsageError(f"-H {one!r} is not NAME:VALUE")
        headers[name.strip().lower()] = value.strip()

    async def run() -> bool:
        import aiohttp

        decider = Decider()
        async with Cluster.connect(ClusterSettings()) as cluster:
            await check_namespaces(cluster, namespace or ())
            await look(cluster, decider.fleet, namespace or (), controller_namespace)
        body = orjson.dumps({"model": model, "messages": [{"role": "user", "content": prompt}]})
        question = decider.question(Arrival("POST", path, headers, body))
        if isinstance(question, ErrorAnswer):
            typer.echo(f"{question.status}: {question.message}")
            return False
        async with aiohttp.ClientSession() as session:
            await EnginePoller(decider.fleet, session, 1.0).once()
        told = list(lines(decider, question, asyncio.get_running_loop().time()))
        typer.echo("\n".join(told))
        return not any(REFUSAL.match(line) for line in told)

    if not asyncio.run(run()):
        raise typer.Exit(1)
