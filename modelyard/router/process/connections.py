"""Connections of clients: accepted a few at a time, begun and read in turns of the processor's time.

A client chooses how many connections it opens, what it sends on them and in how many pieces. Begun as they come, the
4,096 connections that the kernel keeps ready would take half a second in which nothing else is done. So a pass of the
event loop accepts ``MOST_ACCEPTED``, each begins in its client's turn, and what arrives on a connection while the
router is busy is parsed slice by slice in the client's turns; until then no more is read of it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from modelyard.fairness import SharedCapacity
from modelyard.metrics.endpoints import SLICE
from modelyard.router.process.front import MOST_HEAD
from modelyard.router.process.processor_shares import Account, ProcessorShares
from modelyard.routing import client_of, errors

log = logging.getLogger(__name__)

BACKLOG = 4096
MOST_ACCEPTED = 16
"""Connections accepted in one pass of the event loop."""
CONNECTION_SECONDS = 0.0003
"""Processor time that beginning and ending a connection is charged as."""
HANDSHAKE_SECONDS = 0.0015
"""The same with TLS: a signature by a key of 2,048 bits is most of it."""
ACCEPT_PAUSE = 0.5
"""Seconds until connections are accepted again when no file descriptor is left."""
MOST_AHEAD = 2 * MOST_HEAD
"""Bytes of the head of a request while it has not ended."""

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Connection(web.RequestHandler):
    """One connection; what is no HTTP is answered in the shape of all errors."""

    __slots__ = ("_account", "_ahead", "_idle", "_listener", "_reading", "_slices", "client", "ended")

    def __init__(self, listener: Listener, client: str, **more: Any) -> None:
        super().__init__(listener, **more)
        self.client = client
        self._account: Account | None = None
        self._ahead = 0
        self._idle = True
        self._listener = listener
        self._slices: deque[bytes] = deque()
        self._reading: asyncio.Task[None] | None = None
        self.ended = 0
        """Requests that were answered."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It begins, without a request: so the acceptor has counted it."""
        super().connection_made(transport)
        self._account = self._listener.shares.open(("client", self.client))

    def connection_lost(self, exc: BaseException | None) -> None:
        """It is over."""
        super().connection_lost(exc)
        self.idle(False)
        self._slices.clear()
        if self._reading is not None:
            self._reading.cancel()
        if self._account is not None:
            self._account.close()
            self._account = None

    def idle(self, now: bool) -> bool:
        """Set whether the connection is idle; return whether its client may have that many idle connections."""
        now = now and self.transport is not None
        if now == self._idle:
            return True
        self._idle = now
        return self._listener.count(self.client, 1 if now else -1)

    def data_received(self, data: bytes) -> None:
        """Bytes from the client; none: aiohttp goes on with those that it kept."""
        if not data or self._account is None:
            super().data_received(data)
        elif self._reading is None and len(data) <= SLICE and self._account.start():
            try:
                self._parse(data)
            finally:
                self._account.end()
                self._account.used = 0.0
        else:
            self._slices.extend(data[start : start + SLICE] for start in range(0, len(data), SLICE))
            self._pause_transport_reading()
            if self._reading is None:
                self._reading = asyncio.create_task(self._parse_in_turns())

    async def _parse_in_turns(self) -> None:
        assert self._account is not None
        while self._slices:
            async with self._account:
                self._parse(self._slices.popleft())
        self._account.used = 0.0
        self._reading = None
        if not (self._reading_paused or self._buffer_paused):
            self._resume_transport_reading()

    def _parse(self, data: bytes) -> None:
        super().data_received(data)
        if self._request_count > self.ended:  # it is the body, or a request behind it
            self._ahead = 0
        elif (ahead := self._ahead + len(data)) > MOST_AHEAD and self.transport is not None:
            self.transport.abort()
        else:
            self._ahead = ahead

    def _resume_transport_reading(self) -> None:
        if not self._slices:
            super()._resume_transport_reading()

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """The answer to a request that could not be read."""
        if status >= 500:
            log.error("a request failed", exc_info=exc)
            error = errors.internal()
        else:
            error = errors.malformed("the request is not valid HTTP/1.1")
        response = web.Response(status=error.status, body=error.body, content_type="application/json")
        response.force_close()
        return response


class Listener(web.Server):
    """Makes a ``Connection`` of every connection. Of one client ``most`` may be without a request; 0: any number.

    ``shares`` is the processor time in which they are read. ``closed`` is told of each that is closed for ``most``.
    """

    def __init__(
        self, handle: Handler, most: int, closed: Callable[[], object], shares: ProcessorShares, **more: Any
    ) -> None:
        super().__init__(self._request, **more)
        self.shares = shares
        self._handle, self._closed = handle, closed
        self._idle_connections = SharedCapacity(most)

    def connection(self, client: str) -> Connection:
        """Return a new one of this client's."""
        return Connection(self, client, loop=asyncio.get_running_loop(), **self._kwargs)

    def count(self, client: str, by: int) -> bool:
        """A connection of this client's is without a request (or, by -1, no more); whether it may be."""
        self._idle_connections.take(by, client)
        limit = self._idle_connections.total
        crowded = by > 0 and 0 < limit < self._idle_connections.used_by(client)
        if crowded:
            self._closed()
        return not crowded

    async def _request(self, http: web.BaseRequest) -> web.StreamResponse:
        connection = http.protocol
        assert isinstance(connection, Connection)
        connection.idle(False)
        try:
            return await self._handle(http)
        finally:
            connection.ended += 1
            if not connection.idle(True):
                connection.close()


class Acceptor:
    """Accepts the connections of a bound socket for a listener, with TLS by ``tls``."""

    def __init__(self, listener: Listener, bound: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        self._listener, self._bound, self._tls = listener, bound, tls
        self._beginning: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Listen."""
        self._bound.setblocking(False)
        self._bound.listen(BACKLOG)
        self._go_on()

    def stop(self) -> None:
        """Listen no more. Those that were accepted go on."""
        if self._timer is not None:
            self._timer.cancel()
        if self._bound.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._bound)
            self._bound.close()

    async def close(self) -> None:
        """Stop, and end what has not begun."""
        self.stop()
        for task in self._beginning:
            task.cancel()
        await asyncio.gather(*self._beginning, return_exceptions=True)

    def _go_on(self) -> None:
        asyncio.get_running_loop().add_reader(self._bound, self._accept)

    def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(MOST_ACCEPTED):
            try:
                accepted, peer = self._bound.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                log.error("Cannot accept connections: %s; trying again in %g s", error, ACCEPT_PAUSE)
                loop.remove_reader(self._bound)
                self._timer = loop.call_later(ACCEPT_PAUSE, self._go_on)
                return
            accepted.setblocking(False)
            client = client_of(peer[0])
            if self._listener.count(client, 1):
                task = loop.create_task(self._begin(accepted, client))
                self._beginning.add(task)
                task.add_done_callback(self._beginning.discard)
            else:
                self._listener.count(client, -1)
                accepted.close()

    async def _begin(self, accepted: socket.socket, client: str) -> None:
        listener, account = self._listener, self._listener.shares.open(("client", client))
        try:
            async with account:
                account.charge(HANDSHAKE_SECONDS if self._tls else CONNECTION_SECONDS)
        except asyncio.CancelledError:
            accepted.close()
            listener.count(client, -1)
            raise
        finally:
            account.close()
        connection = listener.connection(client)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, accepted, ssl=self._tls)
        except OSError as error:
            log.debug("a connection of %s did not begin: %s", client, error)
        finally:
            if connection.transport is None:
                connection.idle(False)
