"""Reading of long request bodies, in a process of its own.

Parsing holds the interpreter: for 32 MiB of nested values a second in which the event loop would answer nobody. Another
process, of lower priority, is interrupted by the operating system whenever the router has work. It reads one body at a
time: in fair order by client, and of a client in fair order by the namespace whose model a body seems to name, a short
body before long ones. It returns little: the model, some options, the head of the prompt.

It is started with the first long body (or by ``start``), and again when it ends: a body for which it runs out of memory
costs nobody else an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any

import orjson

from modelyard.fairness import SharedCapacity, StartTimeFairQueue
from modelyard.router.process.processor_shares import Account, Owner
from modelyard.routing import BodySummary, ErrorAnswer, Segment, errors, find_segments, summarize

log = logging.getLogger(__name__)

_ALWAYS_SHORT, _NEVER_SHORT = 1 << 14, 1 << 18
_MOST_VALUES = 4096
"""Commas and brackets of a body of up to 256 KiB that is read at once: about a millisecond."""
_JOB = struct.Struct("!?QQI")
"""True: find segments. Bytes of the body, characters of the prompt to return, bytes of the content type."""
_REPLY = struct.Struct("!Id")
"""Bytes of the reply, and the seconds of processor time that reading took."""
_SECONDS_PER_BYTE = 3e-8
"""Processor time that reading a byte is expected to take, among many small values."""
_BUFFER = 1 << 20
_MOST_MEMORY = 2 << 30
"""Address space of the process: the largest body takes about a quarter of it."""
_PRIORITY = 5


def count_values(raw: bytes) -> int:
    """Return about as many as the values of a JSON text: reading takes time for each of them."""
    return raw.count(b",") + raw.count(b"{") + raw.count(b"[")


def is_long(body: bytes) -> bool:
    """Return true for a body that takes more than about a millisecond to read."""
    if len(body) <= _ALWAYS_SHORT:
        return False
    return len(body) > _NEVER_SHORT or count_values(body) > _MOST_VALUES


class BodyReader:
    """Client of the process that reads long bodies."""

    def __init__(self) -> None:
        self._waiting: StartTimeFairQueue[asyncio.Future[None]] = StartTimeFairQueue()
        self._in_progress = SharedCapacity(_MOST_MEMORY)
        """Bytes by owner and namespace."""
        self._is_reading = False
        self._process: asyncio.subprocess.Process | None = None
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._jobs: set[asyncio.Task[Any]] = set()

    async def read(
        self, body: bytes, content_type: str, most_hashed: int, account: Account, namespace: str = ""
    ) -> BodySummary | ErrorAnswer:
        """Read a body as ``summarize`` does. The processor time is charged to the account.

        ``namespace`` is the one whose model it seems to ask for: its turn is after as much of each other one's.
        """
        kind = content_type.encode("utf-8", "replace")
        job = _JOB.pack(False, len(body), most_hashed, len(kind)) + kind
        reply = await self._ask(job, body, account, namespace)
        if isinstance(reply, ErrorAnswer):
            return reply
        model, options, head, tokens, span = reply
        return BodySummary(model, options, head, tokens, tuple(span) if span else None)

    async def find_segments(self, body: bytes, account: Account) -> list[Segment] | ErrorAnswer:
        """Find the segments of a body that was read."""
        reply = await self._ask(_JOB.pack(True, len(body), 0, 0), body, account)
        return reply if isinstance(reply, ErrorAnswer) else [Segment(*segment) for segment in reply]

    async def _ask(self, head: bytes, body: bytes, account: Account, namespace: str = "") -> list[Any] | ErrorAnswer:
        """Have a job done in its turn: in an owner's, of what its namespace has in progress the least."""
        owner, line = account.owner, (account.owner, namespace)
        self._waiting.join(owner)
        self._in_progress.take(len(body), line)
        try:
            if self._is_reading:
                turn = asyncio.get_running_loop().create_future()
                expected = self._in_progress.used_by(line) * _SECONDS_PER_BYTE
                ticket = self._waiting.add(owner, turn, account.used + expected)
                try:
                    await turn
                except asyncio.CancelledError:
                    self._waiting.remove(ticket)
                    self._waiting.leave(owner)
                    if not turn.cancelled():
                        self._start_next()
                    raise
            self._is_reading = True
            # What was begun is finished, also for a client that left: replies come in order.
            job = asyncio.create_task(self._finish(owner, head, body))
            self._jobs.add(job)
            job.add_done_callback(self._jobs.discard)
            reply, seconds = await asyncio.shield(job)
            account.charge(seconds)
            return reply
        finally:
            self._in_progress.take(-len(body), line)

    async def _finish(self, owner: Owner, head: bytes, body: bytes) -> tuple[list[Any] | ErrorAnswer, float]:
        try:
            reply, seconds = await self._do(head, body)
            self._waiting.charge(owner, seconds)
            return reply, seconds
        finally:
            self._waiting.leave(owner)
            self._start_next()

    async def start(self) -> None:
        """Start the process before it is needed."""
        if self._streams is None:
            ours, its = socket.socketpair()
            with its:
                ours.setblocking(False)
                ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
                argv = sys.executable, "-m", "modelyard.router.process.body_reader"
                self._process = await asyncio.create_subprocess_exec(*argv, stdin=its.fileno())
            self._streams = await asyncio.open_connection(sock=ours)

    async def close(self) -> None:
        """End the process."""
        for job in self._jobs:
            job.cancel()
        await asyncio.gather(*self._jobs, return_exceptions=True)
        await self._stop()

    async def _stop(self) -> None:
        process, streams = self._process, self._streams
        self._process = self._streams = None
        if streams is not None:
            streams[1].close()
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _do(self, head: bytes, body: bytes) -> tuple[list[Any] | ErrorAnswer, float]:
        if self._process is not None and self._process.returncode is not None:
            await self._stop()
        try:
            await self.start()
            assert self._streams is not None
            replies, jobs = self._streams
            jobs.write(head)
            jobs.write(body)
            await jobs.drain()
            size, seconds = _REPLY.unpack(await replies.readexactly(_REPLY.size))
            reply = orjson.loads(await replies.readexactly(size))
        except (OSError, EOFError) as error:
            log.error("Reading a body of %d bytes failed: %s; its process is started again", len(body), error)
            await self._stop()
            return errors.busy(f"a body of {len(body)} bytes could not be read"), 0.0
        except asyncio.CancelledError:
            await self._stop()
            raise
        return (ErrorAnswer(*reply["error"]) if "error" in reply else reply["result"]), seconds

    def _start_next(self) -> None:
        self._is_reading = False
        while (turn := self._waiting.next()) is not None:
            if not turn.done():
                self._is_reading = True
                turn.set_result(None)
                return


def _reply(finds_segments: bool, body: bytes, content_type: str, most_hashed: int) -> bytes:
    result: object
    try:
        result = find_segments(body) if finds_segments else summarize(body, content_type, most_hashed)
    except MemoryError:
        result = errors.malformed("invalid request body: it takes too much memory once it is read")
    except ValueError as error:
        result = errors.malformed(f"invalid request body: {error}")
    # A tuple with names is nothing that JSON knows.
    return orjson.dumps({"error" if isinstance(result, ErrorAnswer) else "result": result}, default=list)


def main() -> None:
    """Read bodies from standard input, a socket, and reply on it, until it is closed."""
    os.nice(_PRIORITY)
    with contextlib.suppress(OSError):  # where memory runs out, this process ends before the router
        Path("/proc/self/oom_score_adj").write_text("1000")
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))
    jobs = sys.stdin.buffer
    with socket.socket(fileno=os.dup(0)) as replies:
        while len(head := jobs.read(_JOB.size)) == _JOB.size:
            finds_segments, size, most_hashed, kind = _JOB.unpack(head)
            content_type = jobs.read(kind).decode()
            body = jobs.read(size)
            if len(body) < size:
                break
            begun = time.process_time()
            reply = _reply(finds_segments, body, content_type, most_hashed)
            del body
            replies.sendall(_REPLY.pack(len(reply), time.process_time() - begun) + reply)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt, ConnectionError):
        main()
