"""Answers of bounded size, and connections to pods on which one takes bounded work until it is refused.

A pod sends any bytes, as fast as it can. aiohttp parses all bytes of a read at once, up to 256 KB: ten thousand
interim answers, or as many chunks of one byte, hold up everything else for more than 100 ms, and the objects made of
them take a hundred times the memory of the bytes. Here they are parsed in slices, and between slices an answer is
refused that has too many interim answers, a second head, or next to nothing in its chunks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import HttpProcessingError

MOST_INTERIM = 16
"""Interim answers (1xx) to a request: servers send one or two."""
MOST_HEAD = 1 << 16
"""Bytes of the head of an answer, interim answers included."""
SLICE = 1 << 13
"""Bytes parsed in a step: some 1,400 chunks of the smallest size, which take less than 2 ms."""


async def read_body(answer: aiohttp.ClientResponse, most: int) -> bytes:
    """Return the whole body. Raises ``ValueError`` where it has more than so many bytes."""
    body = bytearray()
    async for chunk in answer.content.iter_any():
        body += chunk
        if len(body) > most:
            answer.close()
            raise ValueError(f"the answer is larger than {most} bytes")
    return bytes(body)


class BoundedConnection(ResponseHandler):
    """A connection to a pod; see above."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._has_head = False
        self._interim = 0
        self._received = 0

    @property
    def has_head(self) -> bool:
        """True when the head of the answer can be read, or there will be none."""
        return self._has_head or self._exception is not None

    # What aiohttp calls.

    def set_response_params(self, **given: Any) -> None:
        """A request is about to be sent."""
        self._has_head = False
        self._interim = self._received = 0
        super().set_response_params(**given)

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        for start in range(0, len(data), SLICE) or (0,):
            if self.transport is None or self.transport.is_closing():
                return
            self._parse(data[start : start + SLICE])
            contents = 0 if self._payload is None else self._payload.total_bytes
            if self._received > MOST_HEAD + 2 * contents:  # chunks of a few bytes, each a hundred times as much work
                self._refuse("its answer is cut into too small chunks")

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

    def _parse(self, data: bytes) -> None:
        self._received += len(data)
        super().data_received(data)
        if not self.has_head and self._received > MOST_HEAD:
            self._refuse(f"the head of its answer is larger than {MOST_HEAD} bytes")

    def _refuse(self, why: str) -> None:
        if self._exception is None:
            self.set_exception(HttpProcessingError(message=why))
            if self._payload is not None:
                self._payload.set_exception(aiohttp.ClientPayloadError(why))
        self._should_close = True
        if self.transport is not None:
            self.transport.abort()


class BoundedConnector(aiohttp.TCPConnector):
    """A pool of such connections, or of those that ``connection`` makes."""

    def __init__(
        self, connection: Callable[[asyncio.AbstractEventLoop], BoundedConnection] = BoundedConnection, **given: Any
    ) -> None:
        super().__init__(**given)
        self._factory = partial(connection, self._loop)  # type: ignore[assignment]
