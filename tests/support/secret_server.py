"""A very small API server for Secrets, over real HTTP: they exist or not, and answers are as a test says."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web
from scripted_api import connected

from modelyard.cluster import Cluster
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
        key = Key(request.match_info["namespace"], request.match_info["name"])
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
    route = web.get("/api/v1/namespaces/{namespace}/secrets/{name}", server.handle)
    async with connected([route], folder) as cluster:
        yield server, cluster
