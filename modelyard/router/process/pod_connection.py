"""Connections to pods whose answers are read step by step, in turns.

Between ``begin`` and ``end`` the bytes of an answer wait here unparsed. The reader of the answer asks for the next
step (``pull``), which parses a slice; while enough bytes wait, none are read from the pod. Bytes that arrive without a
request close the connection. Outside of ``begin`` and ``end`` bytes are parsed as they arrive.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from modelyard.metrics.endpoints import SLICE, BoundedConnection, BoundedConnector
from modelyard.routing import ErrorAnswer

HEAD_SLICE = 1 << 11
"""Bytes parsed in a step before the head of an answer has ended: fewer than 128 interim answers."""
PAUSE_AT = 1 << 16
"""Waiting bytes from which no more are read."""

Hold = Callable[[int], ErrorAnswer | None]
"""Counts bytes that are held in memory; says when there are too many."""


class PodConnection(BoundedConnection):
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
            if self.transport is not None and not self.transport.is_closing():
                self.transport.resume_reading()

    # What aiohttp calls.

    @property
    def should_close(self) -> bool:
        """True where no other request may use the connection."""
        return bool(self.size or self._lost) or super().should_close

    def set_response_params(self, **given: Any) -> None:
        """A request is about to be sent."""
        self._is_pulled = False
        super().set_response_params(**given)

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        if not self._is_pulled:
            super().data_received(data)
        elif not self._is_asked:
            self._refuse("it sent what it was not asked for")
        elif self._exception is None:
            self._slices.extend(data[start : start + SLICE] for start in range(0, len(data), SLICE))
            self.size += len(data)
            if (problem := self._hold(len(data))) is not None:
                self._refuse(f"no memory is left for its answer: {problem.message}")
            elif self.size >= PAUSE_AT and not self._is_paused:
                self._is_paused = True
                if self.transport is not None:
                    self.transport.pause_reading()
            self._wake()

    def connection_lost(self, exc: BaseException | None) -> None:
        """The connection ended: after the bytes that wait."""
        if self._is_asked and self._slices:
            self._lost = (exc,)
        else:
            super().connection_lost(exc)
        self._wake()

    def set_exception(self, exc: BaseException, *given: Any, **more: Any) -> None:
        """End the answer by an error."""
        super().set_exception(exc, *given, **more)
        self._wake()

    def pause_reading(self) -> None:
        """Leave it to ``PAUSE_AT``: of what is pulled no more is parsed than is asked for."""
        if not self._is_pulled:
            super().pause_reading()

    def resume_reading(self, *given: Any, **more: Any) -> None:
        """As above."""
        if not self._is_pulled:
            super().resume_reading(*given, **more)

    def _wake(self) -> None:
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)

    def _lose(self) -> None:
        assert self._lost is not None
        (error,), self._lost = self._lost, None
        super().connection_lost(error)


class PodConnector(BoundedConnector):
    """A pool of such connections."""

    def __init__(self, **given: Any) -> None:
        super().__init__(PodConnection, **given)


def _hold_all(_: int) -> None:
    return None
