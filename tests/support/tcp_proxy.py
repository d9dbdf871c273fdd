"""A TCP relay between client and API server that can cut, refuse or stall connections."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from deployments.profile import free_port


class TcpProxy:
    def __init__(self, target: str) -> None:
        parts = urlsplit(target)
        self._host, self._port = str(parts.hostname), int(parts.port or 443)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._port_kept = 0
        self.refuse = False
        self.attempted = asyncio.Event()

    async def __aenter__(self) -> TcpProxy:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", free_port())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"https://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def kubeconfig(self, original: Path, folder: Path) -> Path:
        """The same kubeconfig with the proxy as its server."""
        config = yaml.safe_load(original.read_text())
        config["clusters"][0]["cluster"]["server"] = self.url
        path = folder / "proxied-kubeconfig"
        path.write_text(yaml.safe_dump(config))
        return path

    def cut(self) -> None:
        """Abort every open connection (the peers see a reset)."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def go_away(self) -> None:
        """Stop listening, so that connections are refused, and abort the open ones."""
        assert self._server is not None
        self._port_kept = self._server.sockets[0].getsockname()[1]
        self._server.close()
        self.cut()

    async def come_back(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port_kept)

    async def next_attempt(self) -> None:
        """Wait until a client tries to connect from now on."""
        self.attempted.clear()
        await self.attempted.wait()

    def stall(self) -> None:
        """Keep connections open but pass nothing on."""
        self._flowing.clear()

    def resume(self) -> None:
        self._flowing.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.attempted.set()
        if self.refuse:
            writer.transport.abort()
            return
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.transport.abort()
            return
        for source, sink in ((reader, upstream_writer), (upstream_reader, writer)):
            self._writers.add(sink)
            task = asyncio.create_task(self._pump(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                await self._flowing.wait()
                sink.write(data)
                await sink.drain()
        except OSError:
            pass
        finally:
            self._writers.discard(sink)
            sink.close()
