"""``modelyard node metrics``: next to an engine, shows its metrics page at a port of its own, with unified names.

It is a container of the pods of Models that set ``RUNTIME_PORT`` or ``RUNTIME_URL``, which configure the sidecar that
Kthena runs for this. The engine is asked when somebody asks, and nothing but its metrics can be asked for.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from modelyard.cli.options import check_url

if TYPE_CHECKING:
    from aiohttp import web

TIMEOUT = 5.0
"""Seconds that the engine may take for its page."""
AT_ONCE = 8
"""Pages in memory at once."""


def metrics(
    engine: Annotated[str, typer.Option(callback=check_url, help="URL of the engine.")],
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "0.0.0.0",
    path: Annotated[str, typer.Option(help="Path of the engine's metrics.")] = "/metrics",
    names: Annotated[str, typer.Option(help="Engine whose metrics get unified names: vLLM or SGLang.")] = "",
) -> None:
    """Show an engine's metrics at another port, also under Kthena's unified names, until ended."""
    from aiohttp import web

    app = create_app(f"{engine.rstrip('/')}/{path.lstrip('/')}", names)
    web.run_app(app, host=host, port=port, print=None, access_log=None)


def create_app(source: str, names: str) -> web.Application:
    """Return a server of ``/metrics``, which is the page at ``source``, and ``/health``."""
    import aiohttp
    from aiohttp import web

    from modelyard.metrics.endpoints import MAX_BODY, request_page
    from modelyard.workloads.kthena import with_unified

    places = asyncio.Semaphore(AT_ONCE)

    async def health(_: web.Request) -> web.Response:
        return web.json_response({"status": "healthy"})

    async def page(_: web.Request) -> web.Response:
        async with places:
            try:
                async with asyncio.timeout(TIMEOUT), aiohttp.ClientSession(auto_decompress=False) as session:
                    raw = await request_page(session, source, MAX_BODY)
            except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
                why = str(error) or type(error).__name__
                return web.Response(status=502, text=f"the engine's metrics at {source} cannot be read: {why}\n")
            text = await asyncio.to_thread(lambda: with_unified(raw.decode("utf-8", "replace"), names).encode())
        return web.Response(body=text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    app = web.Application()
    app.add_routes([web.get("/health", health), web.get("/metrics", page)])
    return app
