"""The tokens that engines count in their answers, read while these pass through a router. Pure.

Answers in one piece and streams, of OpenAI's completions, Responses API and the Messages API.
Source: kthena-routing, 14.6 and 23; recordings of vLLM 0.32 in ``tests/data``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

_LONGEST_LINE = 1 << 20
_MOST_TOKENS = 10**9
"""Tokens of one answer: larger numbers are no counts. Sums of them are logged, and empty a budget for years."""


class Usage(NamedTuple):
    """Tokens as the engine counted them; ``None``: not counted. ``input`` includes cached tokens."""

    input: int | None = None
    output: int | None = None

    def joined(self, other: Usage) -> Usage:
        """Return the larger of each: counts only grow while an answer is made, and some events have but one of them."""
        return Usage(*(max((n for n in pair if n is not None), default=None) for pair in zip(self, other, strict=True)))


def usage_of(data: Any) -> Usage:
    """Return the usage that an answer, or an event of one, holds.

    It is a member of the answer, of ``response`` in the events of ``/v1/responses`` (``response.completed``,
    ``response.incomplete``, ``response.failed``) or of ``message`` in the first one of ``/v1/messages``.
    """
    if not isinstance(data, dict):
        return Usage()
    for name in ("", "response", "message"):
        holder = data.get(name) if name else data
        counts = holder.get("usage") if isinstance(holder, dict) else None
        if isinstance(counts, dict):
            usage = _usage(counts)
            # At its start a message has no output yet; a stream that is cut off is charged by its events.
            return usage._replace(output=None) if name == "message" else usage
    return Usage()


def _usage(counts: Mapping[str, Any]) -> Usage:
    prompt, output = _count(counts, "prompt_tokens"), _count(counts, "completion_tokens", "output_tokens")
    total = _count(counts, "total_tokens")
    if prompt is None and (prompt := _count(counts, "input_tokens")) is not None:
        # The Messages API counts what its cache had apart.
        prompt += (_count(counts, "cache_read_input_tokens") or 0) + (
            _count(counts, "cache_creation_input_tokens") or 0
        )
    elif prompt is None and total is not None and total >= (output or 0):
        prompt = total - (output or 0)
    return Usage(prompt, output)


def _count(counts: Mapping[str, Any], *names: str) -> int | None:
    """Return the first of these members that is a number of tokens."""
    values = (counts.get(name) for name in names)
    return next((n for n in values if isinstance(n, int) and not isinstance(n, bool) and 0 <= n <= _MOST_TOKENS), None)


_TELLS = re.compile(rb'"usage"\s*:\s*\{')
_USAGE = re.compile(rb'"usage"\s*:\s*\{[^{}]{0,4000}(?:\{[^{}]{0,4000}\}[^{}]{0,4000}){0,8}\}')
"""A usage object whose members are numbers, or objects of numbers: a text has its quotation marks escaped."""
_TAIL = 1 << 14
"""Bytes at the end of a long answer, or of a long line, in which its usage is sought."""


def _usage_within(raw: bytes) -> Usage:
    """Return the usage in a part of a JSON value that is too long to be read."""
    usage = Usage()
    for match in _USAGE.finditer(raw):
        try:
            usage = usage.joined(usage_of(orjson.loads(b"{" + match[0] + b"}")))
        except orjson.JSONDecodeError:
            continue
    return usage


class WholeAnswer:
    """Passes a non-streaming answer on as it arrives, and reads its usage: beyond ``most`` bytes from its end."""

    is_stream = False

    def __init__(self, most: int = _LONGEST_LINE) -> None:
        self._kept = bytearray()
        self._most = most
        self._cut = False

    def feed(self, chunk: bytes) -> bytes:
        """Take bytes as they come; return those to send on now: all."""
        self._kept += chunk
        if len(self._kept) > (2 * _TAIL if self._cut else self._most):
            self._cut = True
            del self._kept[:-_TAIL]
        return chunk

    def end(self) -> bytes:
        """Return the bytes left when the answer has ended: none."""
        return b""

    @property
    def counted(self) -> Usage:
        """Return the tokens to charge."""
        if self._cut:
            return _usage_within(bytes(self._kept))
        try:
            return usage_of(orjson.loads(self._kept))
        except orjson.JSONDecodeError:
            return Usage()


_NO_TOKEN = re.compile(rb"event: ?(?:response\.(?!.*delta)|message_|content_block_st|ping)")
"""Events of the Responses and Messages APIs that bring no token."""


class Relay:
    """Passes a stream of server-sent events on, counts its usage, and withholds the event that only it asked for.

    With ``withhold`` a line goes on once it is whole; without, every byte at once.
    """

    is_stream = True

    def __init__(self, *, withhold: bool) -> None:
        self._withhold = withhold
        self._rest = b""
        self._long = False
        """True while the rest is the end of a line that was too long to keep and has been passed on."""
        self._counts = True
        self.usage = Usage()
        self.events = 0
        """Events with data other than those that bring no token: about the tokens of an answer that tells no usage."""

    def feed(self, chunk: bytes) -> bytes:
        """Take bytes as they come; return those to send on now."""
        passed = len(self._rest) if self._long else 0
        lines = (self._rest + chunk).split(b"\n") if self._rest else chunk.split(b"\n")
        self._rest = lines.pop()
        withheld = [index for index, line in enumerate(lines) if self._read(line)]
        overflow = b""
        if self._long or len(self._rest) > _LONGEST_LINE:
            self._long, overflow, self._rest = True, self._rest, self._rest[-_TAIL:]
        if not self._withhold:
            return chunk
        for index in reversed(withheld):
            del lines[index]
        return (b"".join(line + b"\n" for line in lines) + overflow)[passed:]

    def end(self) -> bytes:
        """Return the bytes left when the stream has ended."""
        rest, self._rest, passed = self._rest, b"", self._long
        return b"" if self._read(rest) or passed or not self._withhold else rest

    @property
    def output(self) -> int:
        """Tokens generated: as told, else the events."""
        return self.events if self.usage.output is None else self.usage.output

    @property
    def counted(self) -> Usage:
        """Return the tokens to charge."""
        return Usage(self.usage.input, self.output)

    def _read(self, line: bytes) -> bool:
        """Count a line; return whether it is to be withheld."""
        if self._long:
            self._long = False
            self.usage = self.usage.joined(_usage_within(line))
            self.events += self._counts
            return False
        if not line.startswith(b"data:"):
            if line.startswith(b"event:"):
                self._counts = _NO_TOKEN.match(line) is None
            elif not self._counts and not line.strip():
                self._counts = True
            return False
        if _TELLS.search(line) is None:
            self.events += self._counts and not line.startswith((b"data: [DONE]", b"data:[DONE]"))
            return False
        try:
            data = orjson.loads(line[5:])
        except orjson.JSONDecodeError:
            return False
        self.usage = self.usage.joined(usage_of(data))
        alone = isinstance(data, dict) and data.get("choices") == []
        self.events += self._counts and not alone
        return self._withhold and alone
