"""A very small API server for Secrets, over real HTTP: they exist or not, and answers are as a test says."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import yaml
from aiohttp import web

from modelyard.cluster import Cluster, ClusterSettings
from modelyard.objects import Key


class SecretServer:
    """The Secrets ``there``; ``asked`` and ``accepted`` are the keys and media types of the requests."""

    def __init__(self) -> None:
        self.there: set[Key] = set()
        self.asked: list[Key] = []
        self.accepted: list[str] = []
        self.status = 0
        """Status of every answer; 0: 200 or 404."""

    async def handle(self, request: web.Request) -> web.Response:
        parts = request.path.strip("/").split("/")
        key = Key(parts[3], parts[5])
        self.asked.append(key)
        self.accepted.append(request.headers["Accept"])
        status = self.status or (200 if key in self.there else 404)
        reason = {403: "Forbidden", 404: "NotFound"}.get(status, "")
        body = {"metadata": {"name": key.name}, "reason": reason, "details": {"name": key.name}}
        return web.json_response(body, status=status)


@asynccontextmanager
async def secret_server(folder: Path) -> AsyncIterator[tuple[SecretServer, Cluster]]:
    """The server, and a connection to it."""
    server = SecretServer()
    application = web.Application()
    application.router.add_get("/api/v1/namespaces/{namespace}/secrets/{name}", server.handle)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    config = {
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{runner.addresses[0][1]}"}}],
        "users": [{"name": "u", "user": {"token": "secret"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "c",
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    try:
        async with Cluster.connect(ClusterSettings(kubeconfig=path, retry_delay=0.01)) as cluster:
            yield server, cluster
    finally:
        await runner.cleanup()
