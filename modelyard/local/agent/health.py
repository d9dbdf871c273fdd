"""What the agent serves over HTTP on loopback, for the supervisor and Prometheus.

/healthz answers while it runs, /readyz once it knows its Nodes and pods, /discovery/pods lists pods as scrape targets.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from modelyard.cluster import Object


class Health:
    """A tiny server on loopback."""

    def __init__(self, port: int, discovery: Callable[[], list[Object]]) -> None:
        self._port = port
        self._discovery = discovery
        self.ready = False

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Serve for the length of the `with`. Raises `OSError` when the port is taken."""
        application = web.Application()
        application.router.add_get("/healthz", self._healthz)
        application.router.add_get("/readyz", self._readyz)
        application.router.add_get("/discovery/pods", self._pods)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", self._port, reuse_address=True).start()
            yield
        finally:
            await runner.cleanup()

    async def _healthz(self, request: web.Request) -> web.Response:
        del request
        return web.Response(text="ok")

    async def _readyz(self, request: web.Request) -> web.Response:
        del request
        return web.Response(text="ok") if self.ready else web.Response(status=503, text="nodes or pods not known yet")

    async def _pods(self, request: web.Request) -> web.Response:
        del request
        # Prometheus keeps the targets it has when it gets an error, which is better than an empty list.
        return web.json_response(self._discovery()) if self.ready else web.Response(status=503)
