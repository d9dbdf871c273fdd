"""Requests to pods over aiohttp's pool of connections and its parser, without what a client does for whole websites."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import aiohttp
from aiohttp.http import HttpProcessingError
from yarl import URL

_COPIED = 1 << 14


class PodAnswer:
    """An answer of which the head is there; the body is read from ``content``. Has to be closed."""

    __slots__ = ("_connection", "content", "headers", "status")

    def __init__(self, connection: Any, message: Any, content: aiohttp.StreamReader) -> None:
        self._connection = connection
        self.status: int = message.code
        self.headers = message.headers
        self.content = content

    @property
    def content_type(self) -> str:
        """The media type without its parameters; empty where none is told."""
        return str(self.headers.get("Content-Type", "")).partition(";")[0].strip().lower()

    def close(self) -> None:
        """Leave the connection: for the next request where nothing of this one is on the way any more."""
        transport = self._connection.transport
        if self.content.at_eof() and transport is not None and not transport.get_write_buffer_size():
            self._connection.release()
        else:
            self._connection.close()


class PodClient:
    """Sends requests over the connections of a pool, and new ones, which are waited for ``connect_seconds``."""

    def __init__(self, connector: aiohttp.TCPConnector, connect_seconds: float) -> None:
        self._connector, self._connect_seconds = connector, connect_seconds
        # What the pool knows a pod by.
        self._place = lru_cache(maxsize=4096)(lambda url: aiohttp.ClientRequest("POST", URL(url), loop=_loop()))
        self._limits = lru_cache(maxsize=64)(lambda limit: aiohttp.ClientTimeout(connect=limit, sock_connect=limit))

    async def post(
        self, url: str, head: Sequence[str], body: bytes, until: float, sent: Callable[[], None] = lambda: None
    ) -> PodAnswer:
        """Send to the pod at ``url`` and wait for the head of the answer, by the loop's clock until ``until``.

        ``head``: the lines of the request's, but for the length of the body. ``sent`` is called once the pod gets it.

        Raises ``aiohttp.ClientError``, of which ``ConnectionTimeoutError`` says that the pod took no connection, and
        ``TimeoutError``.
        """
        text = "\r\n".join((*head, f"Content-Length: {len(body)}", "", ""))
        if text.count("\r") != len(head) + 2 or text.count("\n") != len(head) + 2:
            raise ValueError("a line of the head is more than one")
        loop = _loop()
        try:
            limits = self._limits(max(0.001, min(until - loop.time(), self._connect_seconds)))
            connection = await self._connector.connect(self._place(url), [], limits)
        except TimeoutError as late:
            if loop.time() < until:
                raise aiohttp.ConnectionTimeoutError(f"connecting to {url} took too long") from late
            raise
        protocol, transport = connection.protocol, connection.transport
        timer: asyncio.TimerHandle | None = None
        try:
            # What was said on a kept connection before it was asked anything would be taken for the answer.
            if protocol is None or transport is None or transport.is_closing() or protocol.should_close:
                raise aiohttp.ServerDisconnectedError
            protocol.set_response_params(read_until_eof=True, auto_decompress=False, read_bufsize=1 << 16)
            timer = loop.call_at(until, protocol.set_exception, TimeoutError()) if until < math.inf else None
            lines = text.encode("utf-8", "surrogateescape")
            # One call of the system for both; a long body is not copied for it.
            transport.write(lines + body) if len(body) < _COPIED else transport.writelines((lines, body))
            sent()
            while True:
                message, content = await protocol.read()
                if not 100 <= message.code < 200 or message.code == 101:
                    return PodAnswer(connection, message, content)
        except HttpProcessingError as error:
            connection.close()
            raise aiohttp.ClientPayloadError(error.message) from error
        except BaseException:
            connection.close()
            raise
        finally:
            if timer is not None:
                timer.cancel()


_loop = asyncio.get_running_loop
