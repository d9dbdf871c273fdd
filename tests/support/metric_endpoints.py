"""Metrics endpoints of pods on loopback addresses of their own, well-behaved and otherwise, for policy tests.

A pod's address is any 127.x.y.z; all endpoints of one server listen on the same port, as the pods of a workload do.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Awaitable, Callable

Handler = Callable[[asyncio.StreamWriter], Awaitable[None]]

_NEXT = itertools.count((os.getpid() * 97) % 60000 * 256 + 2)


def fresh_address() -> str:
    """A loopback address that no other test of this process uses."""
    number = next(_NEXT)
    return f"127.{100 + number // 65536 % 100}.{number // 256 % 256}.{number % 256}"


def page(text: str, status: str = "200 OK", headers: str = "") -> Handler:
    """An ordinary answer."""

    async def handle(writer: asyncio.StreamWriter) -> None:
        body = text.encode(errors="surrogateescape")
        head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
        writer.write(head.encode() + body)
        await writer.drain()

    return handle


async def hang(writer: asyncio.StreamWriter) -> None:
    """Take the connection and never say anything."""
    await asyncio.sleep(60)


async def cut(writer: asyncio.StreamWriter) -> None:
    """Promise a page and close in the middle of it."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nload 1\n")
    await writer.drain()


async def endless(writer: asyncio.StreamWriter) -> None:
    """Fifty megabytes of metrics, without telling how many."""
    writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nload 1\n")
    block = b"other_metric 1\n" * 4096
    for _ in range(800):
        writer.write(block)
        await writer.drain()


async def dripping(writer: asyncio.StreamWriter) -> None:
    """A page of which a byte comes now and then."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    for _ in range(600):
        writer.write(b"a")
        await writer.drain()
        await asyncio.sleep(0.05)


async def not_http(writer: asyncio.StreamWriter) -> None:
    """Something else lives on this port."""
    writer.write(b"\x15\x03\x01\x00\x02\x02\x0a" * 10)
    await writer.drain()


class Endpoints:
    """Pods' endpoints on one port. ``async with Endpoints() as endpoints``; ``endpoints[ip] = handler``."""

    def __init__(self, port: int = 0) -> None:
        self.port = port
        self.asked: list[str] = []
        """Request lines with the address that was asked, in order."""
        self._handlers: dict[str, Handler] = {}
        self._servers: list[asyncio.Server] = []
        self._open: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Endpoints:
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self._servers:
            server.close()
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def add(self, handler: Handler, ip: str | None = None) -> str:
        """A new pod's endpoint; its address."""
        ip = ip or fresh_address()
        self._handlers[ip] = handler
        server = await asyncio.start_server(lambda r, w: self._serve(ip, r, w), ip, self.port)
        self.port = self.port or server.sockets[0].getsockname()[1]
        self._servers.append(server)
        return ip

    def __setitem__(self, ip: str, handler: Handler) -> None:
        """What that pod shows from now on."""
        self._handlers[ip] = handler

    async def _serve(self, ip: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            while request := await reader.readuntil(b"\r\n\r\n"):
                line = request.decode("latin-1").splitlines()[0]
                self.asked.append(f"{ip} {line}")
                handler = self._handlers[ip]
                await handler(writer)
                if handler in (cut, endless, not_http, hang):
                    break
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            self._open.discard(task)
            writer.close()
