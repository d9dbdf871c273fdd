"""A very small API server for ConfigMaps, over real HTTP, that refuses, withholds and forgets what a test says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

from modelyard.cluster import Cluster, ClusterSettings

Object = dict[str, Any]


SERVED: dict[str, Object] = {
    "/api": {"versions": ["v1"]},
    "/apis": {"groups": []},
    "/api/v1": {"resources": [{"name": "configmaps", "kind": "ConfigMap", "namespaced": True}]},
}
"""What it says that it serves."""


class ScriptedApi:
    """ConfigMaps by (namespace, name), with a history that watches are served from."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], Object] = {}
        self.history: list[tuple[int, str, Object]] = []
        self.version = 100
        self.oldest = 0
        """Watches from before this version are refused with 410."""
        self.forbidden: set[tuple[str, str]] = set()
        """(verb, namespace or ""): what is answered with 403."""
        self.withheld = False
        """Watches stay open and say nothing."""
        self.requests: list[tuple[str, str]] = []
        """(verb, namespace or "") of every list and watch."""
        self.replacements: dict[str, str] = {}
        """Parts of the JSON of lists and watches, and what is sent in their place."""
        self._moved = asyncio.Condition()
        self._cut = asyncio.Event()

    async def put(self, namespace: str, name: str, **data: str) -> Object:
        kind = "MODIFIED" if (namespace, name) in self.objects else "ADDED"
        self.version += 1
        metadata = {"namespace": namespace, "name": name, "uid": name, "resourceVersion": str(self.version)}
        self.objects[namespace, name] = body = {"metadata": metadata, "data": data}
        await self._tell(kind, body)
        return body

    async def delete(self, namespace: str, name: str) -> None:
        self.version += 1
        gone = self.objects.pop((namespace, name))
        metadata = {**gone["metadata"], "resourceVersion": str(self.version)}
        await self._tell("DELETED", {**gone, "metadata": metadata})

    async def cut(self) -> None:
        """End every watch in the middle of a line."""
        self._cut.set()
        await self._tell("", {})
        self._cut = asyncio.Event()

    async def released(self) -> None:
        """Watches speak again."""
        self.withheld = False
        await self._tell("", {})

    def asked(self, verb: str) -> list[str]:
        """The namespaces of the requests with this verb so far, which are then forgotten."""
        found = [place for asked, place in self.requests if asked == verb]
        self.requests = [one for one in self.requests if one[0] != verb]
        return found

    async def _tell(self, kind: str, body: Object) -> None:
        async with self._moved:
            if kind:
                self.history.append((self.version, kind, body))
            self._moved.notify_all()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        parts = request.path.strip("/").split("/")
        if request.path in SERVED:
            return web.json_response(SERVED[request.path])
        namespace = parts[3] if "namespaces" in parts else ""
        if request.method == "PATCH":
            patch = await request.json()
            return web.json_response(await self.put(namespace, parts[-1], **patch["data"]))
        verb = "watch" if "watch" in request.query else "list"
        self.requests.append((verb, namespace))
        if (verb, namespace) in self.forbidden:
            return web.json_response({"reason": "Forbidden", "message": f"no {verb} in {namespace}"}, status=403)
        if verb == "watch":
            return await self._watch(request, namespace)
        items = [body for key, body in sorted(self.objects.items()) if namespace in ("", key[0])]
        listed = {"metadata": {"resourceVersion": str(self.version)}, "items": items}
        return web.json_response(listed, dumps=self._encode)

    def _encode(self, value: Object) -> str:
        text = json.dumps(value)
        for part, sent in self.replacements.items():
            text = text.replace(part, sent)
        return text

    async def _watch(self, request: web.Request, namespace: str) -> web.StreamResponse:
        position, cut = int(request.query["resourceVersion"]), self._cut
        if position < self.oldest:
            return web.json_response({"reason": "Expired", "message": "too old"}, status=410)
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            async with self._moved:
                for version, kind, body in [] if self.withheld else self.history:
                    if version > position and namespace in ("", body["metadata"]["namespace"]):
                        position = version
                        await response.write(self._encode({"type": kind, "object": body}).encode() + b"\n")
                if cut.is_set():
                    assert request.transport is not None
                    request.transport.abort()
                    return response
                await self._moved.wait()


@asynccontextmanager
async def connected(routes: Iterable[web.RouteDef], folder: Path, **settings: Any) -> AsyncIterator[Cluster]:
    """A connection to a server of these routes."""
    application = web.Application()
    application.add_routes(routes)
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
        async with Cluster.connect(ClusterSettings(kubeconfig=path, retry_delay=0.01, **settings)) as cluster:
            yield cluster
    finally:
        await runner.cleanup()


@asynccontextmanager
async def scripted_api(folder: Path, **settings: Any) -> AsyncIterator[tuple[ScriptedApi, Cluster]]:
    """The server, and a connection to it."""
    api = ScriptedApi()
    async with connected([web.route("*", "/{path:.*}", api.handle)], folder, **settings) as cluster:
        yield api, cluster
