"""Connections to pods that are read in bounded steps.

A pod sends any bytes, as fast as it can. aiohttp parses all bytes of a read at once, up to 256 KB: ten thousand
interim answers, or as many chunks of one byte, hold up every other request for more than 100 ms, and the objects made
of them take a hundred times the memory of the bytes.

Between ``begin`` and ``end`` the bytes of an answer wait here unparsed. The reader of the answer asks for the next
step (``pull``), which parses a slice; while enough bytes wait, none are read from the pod. Bytes that arrive without a
request close the connection. Outside of ``begin`` and ``end``, for pages of metrics, slices are parsed as they arrive.

In either case an answer has few interim answers, and one head.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import HttpProcessingError

from modelyard.routing.errors import ErrorAnswer
from modelyard.routing.usage import SLICE

MOST_INTERIM = 16
"""Interim answers (1xx) to a request: servers send one or two."""
MOST_HEAD = 1 << 16
"""Bytes of the head of an answer, interim answers included: as of a request."""
HEAD_SLICE = 1 << 11
"""Bytes parsed in a step before the head of an answer has ended: fewer than 128 interim answers."""
PAUSE_AT = 1 << 16
"""Waiting bytes from which no more are read."""

Hold = Callable[[int], ErrorAnswer | None]
"""Counts bytes that are held in memory; says when there are too many."""


class PodConnection(ResponseHandler):
    """A connection to a pod; see above."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.size = 0
        """Bytes that wait to be parsed."""
        self._slices: deque[bytes] = deque()
        self._is_pulled = False
        """True from the first ``begin`` until another kind of request uses the connection."""
        self._is_asked = False
        """True between ``begin`` and ``end``."""
        self._is_paused = False
        self._lost: tuple[BaseException | None] | None = None
        self._arrived: asyncio.Future[None] | None = None
        self._hold: Hold = _hold_all
        self._has_head = False
        self._interim = 0
        self._received = 0

    def begin(self, hold: Hold) -> None:
        """Expect an answer. ``hold`` is called with each change of the number of waiting bytes.

        An error that it returns says that there is no memory for them, and ends the answer.
        """
        self._is_pulled = self._is_asked = True
        self._hold = hold

    def end(self) -> None:
        """Expect no more: bytes that still wait are forgotten, and the connection cannot be kept for them."""
        self._is_asked = False
        if self.size:
            self._should_close = True
            self._hold(-self.size)
            self._slices.clear()
            self.size = 0
        self._hold = _hold_all
        if self._lost is not None:
            self._lose()

    @property
    def has_head(self) -> bool:
        """True when the head of the answer can be read, or there will be none."""
        return self._has_head or self._exception is not None

    async def arrive(self) -> None:
        """Wait until there is something to pull."""
        while not self._slices and self._lost is None and self._exception is None:
            self._arrived = self._loop.create_future()
            try:
                await self._arrived
            finally:
                self._arrived = None

    def pull(self) -> None:
        """Parse a slice, or take note that the connection ended."""
        if not self._slices:
            if self._lost is not None:
                self._lose()
            return
        most = SLICE if self._has_head else HEAD_SLICE
        data = self._slices.popleft()
        if len(data) > most:
            self._slices.appendleft(data[most:])
            data = data[:most]
        elif self._slices and len(data) + len(self._slices[0]) <= most:
            parts, size = [data], len(data)
            while self._slices and size + len(self._slices[0]) <= most:
                parts.append(self._slices.popleft())
                size += len(parts[-1])
            data = b"".join(parts)
        self.size -= len(data)
        self._hold(-len(data))
        self._parse(data)
        if self._is_paused and self.size < PAUSE_AT:
            self._is_paused = False
            self._resume()

    # What aiohttp calls.

    @property
    def should_close(self) -> bool:
        """True where no other request may use the connection."""
        return bool(self.size or self._lost) or super().should_close

    def set_response_params(self, **given: Any) -> None:
        """A request is about to be sent."""
        self._is_pulled = self._has_head = False
        self._interim = self._received = 0
        super().set_response_params(**given)

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        if not self._is_pulled:
            for start in range(0, len(data), SLICE):
                if self.transport is None or self.transport.is_closing():
                    return
                self._parse(data[start : start + SLICE])
                self._check_framing()
        elif not self._is_asked:
            self._refuse("it sent what it was not asked for")
        elif self._exception is None:
            self._slices.extend(data[start : start + SLICE] for start in range(0, len(data), SLICE))
            self.size += len(data)
            if (problem := self._hold(len(data))) is not None:
                self._refuse(f"no memory is left for its answer: {problem.message}")
            elif self.size >= PAUSE_AT and not self._is_paused:
                self._is_paused = True
                self._pause()
            self._wake()

    def connection_lost(self, exc: BaseException | None) -> None:
        """The connection ended: after the bytes that wait."""
        if self._is_asked and self._slices:
            self._lost = (exc,)
        else:
            super().connection_lost(exc)
        self._wake()

    def feed_data(self, data: Any, size: int = 0) -> None:
        """Take the parsed head of an answer."""
        message = data[0]
        if self._has_head:
            self._refuse("it sent what it was not asked for")
        elif 100 <= message.code < 200 and message.code != 101:
            self._interim += 1
            if self._interim > MOST_INTERIM:
                self._refuse(f"it sent more than {MOST_INTERIM} interim answers")
        else:
            self._has_head = True
            super().feed_data(data, size)

    def set_exception(self, exc: BaseException, *cause: Any) -> None:
        """End the answer by an error."""
        super().set_exception(exc, *cause)
        self._wake()

    def pause_reading(self) -> None:
        """Leave it to ``PAUSE_AT``: of what is pulled no more is parsed than is asked for."""
        if not self._is_pulled:
            super().pause_reading()

    def resume_reading(self, *given: Any, **more: Any) -> None:
        """As above."""
        if not self._is_pulled:
            super().resume_reading(*given, **more)

    def _parse(self, data: bytes) -> None:
        self._received += len(data)
        super().data_received(data)
        if not self.has_head and self._received > MOST_HEAD:
            self._refuse(f"the head of its answer is larger than {MOST_HEAD} bytes")

    def _check_framing(self) -> None:
        contents = 0 if self._payload is None else self._payload.total_bytes
        if self._received > MOST_HEAD + 2 * contents:  # chunks of a few bytes, each a hundred times as much work
            self._refuse("its answer is cut into too small chunks")

    def _refuse(self, why: str) -> None:
        if self._exception is None:
            self.set_exception(HttpProcessingError(message=why))
            if self._payload is not None:
                self._payload.set_exception(aiohttp.ClientPayloadError(why))
        self._should_close = True
        if self.transport is not None:
            self.transport.abort()

    def _wake(self) -> None:
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)

    def _lose(self) -> None:
        assert self._lost is not None
        (error,), self._lost = self._lost, None
        super().connection_lost(error)

    def _pause(self) -> None:
        if self.transport is not None:
            self.transport.pause_reading()

    def _resume(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()


class PodConnector(aiohttp.TCPConnector):
    """A pool of such connections."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._factory = lambda: PodConnection(self._loop)


def _hold_all(_: int) -> None:
    return None
