"""Requests to pods over aiohttp's pool of connections and its parser, without what a client does for whole websites.

Answers are parsed slice by slice (``pod_connection``), each in its turn of the processor's time.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import aiohttp
from aiohttp.http import HttpProcessingError
from yarl import URL

from modelyard.router.process.pod_connection import Hold, PodConnection, PodConnector
from modelyard.router.process.processor_shares import Account

_COPIED = 1 << 14


class PodAnswer:
    """An answer of which the head is there, and the body is to be read. Has to be closed."""

    __slots__ = ("_account", "_connection", "_content", "_protocol", "headers", "status")

    def __init__(
        self, connection: Any, protocol: PodConnection, message: Any, content: aiohttp.StreamReader, account: Account
    ) -> None:
        self._connection, self._protocol, self._account = connection, protocol, account
        self._content = content
        self.status: int = message.code
        self.headers = message.headers

    @property
    def content_type(self) -> str:
        """The media type without its parameters; empty where none is told."""
        return str(self.headers.get("Content-Type", "")).partition(";")[0].strip().lower()

    @property
    def is_whole(self) -> bool:
        """True when all of it is parsed, so that reading it waits for nothing."""
        return self._content.is_eof()

    async def read(self) -> bytes:
        """Return the next bytes of the body; none: it has ended. Raises ``aiohttp.ClientError``."""
        content, protocol = self._content, self._protocol
        while True:
            if data := content.read_nowait():
                return data
            if content.is_eof():
                return b""
            if (error := protocol.exception()) is not None:
                raise _payload_error(error)
            await protocol.arrive()
            async with self._account:
                protocol.pull()

    def close(self) -> None:
        """Leave the connection: for the next request where nothing of this one is on the way any more."""
        transport = self._protocol.transport
        unsent = transport is None or transport.get_write_buffer_size()
        self._protocol.end()
        if self._content.at_eof() and not unsent:
            self._connection.release()
        else:
            self._connection.close()


class PodClient:
    """Sends requests over the connections of a pool, and new ones, which are waited for ``connect_seconds``."""

    def __init__(self, connector: PodConnector, connect_seconds: float) -> None:
        self._connector, self._connect_seconds = connector, connect_seconds
        # What the pool knows a pod by.
        self._place = lru_cache(maxsize=4096)(lambda url: aiohttp.ClientRequest("POST", URL(url), loop=_loop()))
        self._limits = lru_cache(maxsize=64)(lambda limit: aiohttp.ClientTimeout(connect=limit, sock_connect=limit))

    async def post(
        self,
        url: str,
        head: Sequence[str],
        body: bytes,
        until: float,
        account: Account,
        hold: Hold,
        sent: Callable[[], None] = lambda: None,
    ) -> PodAnswer:
        """Send to the pod at ``url`` and wait for the head of the answer, by the loop's clock until ``until``.

        ``head``: the lines of the request's, but for the length of the body. ``account``: of the processor's time that
        the answer takes. ``hold`` counts bytes of the answer while they wait to be read. ``sent`` is called once the
        pod gets the request.

        Raises ``aiohttp.ClientError``, of which ``ConnectionTimeoutError`` says that the pod took no connection, and
        ``TimeoutError``.
        """
        text = "\r\n".join((*head, f"Content-Length: {len(body)}", "", ""))
        if text.count("\r") != len(head) + 2 or text.count("\n") != len(head) + 2:
            raise ValueError("a line of the head is more than one")
        loop = _loop()
        if loop.time() >= until:
            raise TimeoutError
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
            assert isinstance(protocol, PodConnection)
            protocol.set_response_params(read_until_eof=True, auto_decompress=False, read_bufsize=1 << 16)
            protocol.begin(hold)
            timer = loop.call_at(until, protocol.set_exception, TimeoutError()) if until < math.inf else None
            lines = text.encode("utf-8", "surrogateescape")
            # One call of the system for both; a long body is not copied for it.
            transport.write(lines + body) if len(body) < _COPIED else transport.writelines((lines, body))
            sent()
            while not protocol.has_head:
                await protocol.arrive()
                async with account:
                    protocol.pull()
            message, content = await protocol.read()
            return PodAnswer(connection, protocol, message, content, account)
        except BaseException as error:
            if isinstance(protocol, PodConnection):
                protocol.end()
            connection.close()
            if isinstance(error, HttpProcessingError):
                raise _payload_error(error) from error
            raise
        finally:
            if timer is not None:
                timer.cancel()


def _payload_error(error: BaseException) -> BaseException:
    # A message quotes what is malformed: up to a whole slice.
    return aiohttp.ClientPayloadError(error.message[:200]) if isinstance(error, HttpProcessingError) else error


_loop = asyncio.get_running_loop
