"""Token counts of answers that pass through a router: the engine's own, or an estimate from the bytes. Pure.

Engines count in the ``usage`` of an answer or of a stream's last events, on every API that they serve. An answer whose
count is missing or unreadable is estimated by its bytes, and a count far below the bytes is raised to a floor
(``Charge``), so that no answer passes for free. All of it is the same however the answer is cut into pieces.
Source: kthena-routing, 14.6 and 23; recordings of vLLM 0.32 in ``tests/data``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

TEXT_BYTES = 4
"""Bytes of text for one token, where nothing better is known."""
OTHER_BYTES = 1 << 10
"""Bytes for one token of what is not text: vectors, sounds, images, events that announce or repeat."""
FLOOR = 32
"""Factor by which a count may be below the estimate: no vocabulary has 128 bytes per token over a whole text."""
FREE_BYTES = 1 << 16
"""Bytes of an error, or of a stream's lines without text, that are not charged: engines do not generate them."""
_PIECE_BYTES = 1 << 12
"""Most bytes of an event with one token: twenty alternatives with their probabilities are half of it."""
_PADDING_BYTES = 1 << 16
"""Bytes of an answer in one piece for one token of its floor: hidden states of large models are as long."""
_ENVELOPE_BYTES = 1 << 10
"""Most bytes of an event without text."""
_LONGEST_TOKEN = 32
"""Bytes of text in an event that may be one token; more is estimated as text."""
_LONGEST_NAME, _MOST_NAMES = 64, 32
"""Bytes of the name of an event, and distinct names of a stream, that are not charged: engines have a dozen."""
_LONGEST_LINE = 1 << 16
"""Bytes of a line, or of an answer in one piece, that are read as JSON: 3 ms of work at worst. Longer ones are only
searched for their usage."""
SLICE = 1 << 13
"""Bytes of a stream that are read in one step: less than 1 ms of work at worst."""
_MOST_LINES = 512
"""Lines of a slice that are looked at: 16 bytes each, where an event has a hundred."""
_MOST_COUNTS = 16
"""Lines of a slice whose usage is read. The rest of a slice with more of either passes unseen."""
_MOST_TRIES = 4
"""Members named ``usage`` of a part of an answer that are looked at, from its end."""
_MOST_TOKENS = 10**9
"""Tokens of one answer: larger numbers are no counts. Sums of them are logged, and empty a budget for years."""


class Usage(NamedTuple):
    """Tokens as the engine counted them; ``None``: not counted. ``input`` includes cached tokens."""

    input: int | None = None
    output: int | None = None

    def joined(self, other: Usage) -> Usage:
        """Return the larger of each: counts only grow while an answer is made, and some events have but one of them."""
        return Usage(*(max((n for n in pair if n is not None), default=None) for pair in zip(self, other, strict=True)))


class Charge(NamedTuple):
    """Tokens that a request costs."""

    input: int
    output: int


def charge(estimated: int, answer: CountedAnswer) -> Charge:
    """Return the tokens to charge for an answer to a prompt of about ``estimated`` tokens."""
    usage = answer.counted
    prompt, output = max(estimated if usage.input is None else usage.input, estimated // FLOOR), usage.output or 0
    return Charge(prompt, max(output, answer.least(prompt + output) - prompt))


def usage_of(data: Any) -> Usage:
    """Return the usage that an answer, or an event of one, holds.

    It is a member of the answer, of ``response`` in the events of ``/v1/responses`` (``response.completed``,
    ``response.incomplete``, ``response.failed``) or of ``message`` in the first one of ``/v1/messages``. SGLang answers
    rerank requests with a list whose entries have a prompt each.
    """
    if isinstance(data, list):
        infos = [entry.get("meta_info") if isinstance(entry, dict) else None for entry in data]
        prompts = [_count(info, "prompt_tokens") if isinstance(info, dict) else None for info in infos]
        return Usage(sum(prompt or 0 for prompt in prompts)) if prompts and None not in prompts else Usage()
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
        cached = ("cache_read_input_tokens", "cache_creation_input_tokens")
        prompt += sum(_count(counts, name) or 0 for name in cached)
    if total is None:
        return Usage(prompt, output)
    if prompt is None and total >= (output or 0):
        prompt = total - (output or 0)
    elif prompt is not None and output is None and total >= prompt:
        output = total - prompt
    return Usage(prompt, output)


def _count(counts: Mapping[str, Any], *names: str) -> int | None:
    values = (counts.get(name) for name in names)
    return next((n for n in values if isinstance(n, int) and not isinstance(n, bool) and 0 <= n <= _MOST_TOKENS), None)


_TELLS = re.compile(rb'"usage"\s*:\s*\{')
_USAGE = re.compile(rb'"usage"\s*:\s*\{[^{}]{0,800}+(?:\{[^{}]{0,800}+\}[^{}]{0,800}+){0,8}+\}')
"""A usage object whose members are numbers, or objects of numbers: a text has its quotation marks escaped."""
_TAIL = 1 << 14
"""Bytes in which a usage object fits: so many are kept of an answer that is too long to be kept whole."""
_STRING = rb'((?:[^"\\]++|\\.)*+)'
_TEXT = re.compile(
    rb'"(?:content|text|delta|reasoning|reasoning_content|arguments|refusal|partial_json|thinking)"\s*:\s*"' + _STRING,
    re.DOTALL,
)
"""The members in which answers and their events bring text."""
_TEXT_REST = re.compile(_STRING, re.DOTALL)


def _last_usage(raw: bytes) -> Usage:
    """The last usage is the answer's: a client can have ``/v1/responses`` repeat one of its own among the tools."""
    end = len(raw)
    for _ in range(_MOST_TRIES):
        end = raw.rfind(b'"usage"', 0, end)
        if end < 0:
            break
        if (match := _USAGE.match(raw, end)) is None:
            continue
        try:
            usage = usage_of(orjson.loads(b"{" + match[0] + b"}"))
        except orjson.JSONDecodeError:
            continue
        if usage != Usage():
            return usage
    return Usage()


class _UsageScan:
    def __init__(self) -> None:
        self._kept = bytearray()
        self._last = Usage()
        self.size = 0

    def feed(self, chunk: bytes | bytearray) -> None:
        self._kept += chunk
        self.size += len(chunk)
        if len(self._kept) > 2 * _TAIL:
            self._last = self.usage
            del self._kept[:-_TAIL]

    @property
    def kept(self) -> int:
        return len(self._kept)

    @property
    def usage(self) -> Usage:
        usage = _last_usage(bytes(self._kept))
        return usage if usage != Usage() else self._last


def _text_bytes(raw: bytes) -> int:
    return sum(len(match[1]) for match in _TEXT.finditer(raw))


class _TextScan:
    """Counts the bytes of text in JSON that is too long to be kept, in slices that are the same however it is cut."""

    def __init__(self) -> None:
        self._size = 0
        self._pending = bytearray()
        self._in_text = False

    def feed(self, chunk: bytes | bytearray) -> None:
        self._pending += chunk
        while len(self._pending) >= SLICE:
            size, self._in_text = self._measure(bytes(self._pending[:SLICE]))
            self._size += size
            del self._pending[:SLICE]

    @property
    def size(self) -> int:
        return self._size + self._measure(bytes(self._pending))[0]

    def _measure(self, raw: bytes) -> tuple[int, bool]:
        """Return the bytes of text in a slice, and whether its end is within a text."""
        size = start = 0
        if self._in_text and (rest := _TEXT_REST.match(raw)) is not None:
            size = start = rest.end()
        in_text = self._in_text and start == len(raw)
        for match in _TEXT.finditer(raw, start):
            size += len(match[1])
            in_text = match.end() == len(raw)
        return size, in_text


class WholeAnswer:
    """Reads an answer in one piece as it arrives: as JSON up to ``most`` bytes, beyond that for its usage alone.

    ``writes``: generated text, as opposed to vectors or sounds. ``is_error``: no answer at all. ``is_compressed``:
    the router asked for no compression, so each byte is charged as a token.
    """

    is_stream = False

    def __init__(
        self, most: int = _LONGEST_LINE, *, writes: bool = True, is_error: bool = False, is_compressed: bool = False
    ) -> None:
        self._kept = bytearray()
        self._most = most
        self._scan: _UsageScan | None = None
        self._writes = writes
        self._free = FREE_BYTES if is_error else 0
        self._bytes_per_token = 1 if is_compressed else TEXT_BYTES
        self._size = 0
        self._text = _TextScan()

    def feed(self, chunk: bytes) -> bytes:
        """Take bytes as they come; return those to send on now: all."""
        self._size += len(chunk)
        if self._scan is None:
            self._kept += chunk
            if self._size <= self._most:
                return chunk
            self._scan, rest, self._kept = _UsageScan(), self._kept, bytearray()
        else:
            rest = bytearray(chunk)
        self._scan.feed(rest)
        if self._writes:
            self._text.feed(rest)
        return chunk

    def skip(self, size: int) -> None:
        """Count bytes that pass unseen."""
        self._size += size

    def end(self) -> bytes:
        """Return the bytes left when the answer has ended: none."""
        return b""

    @property
    def kept(self) -> int:
        """Bytes that are kept."""
        return len(self._kept) if self._scan is None else self._scan.kept

    @property
    def usage(self) -> Usage:
        """Tokens as the engine counted them."""
        if self._scan is not None:
            return self._scan.usage
        try:
            return usage_of(orjson.loads(self._kept))
        except orjson.JSONDecodeError:
            return Usage()

    @property
    def counted(self) -> Usage:
        """Tokens by the engine's count; the output by its bytes where that is missing."""
        usage = self.usage
        if usage.output is not None or (usage.input is not None and not self._writes):
            return usage
        size = max(0, self._size - self._free)
        return usage._replace(output=-(-size // self._bytes_per_token) if self._writes else size // OTHER_BYTES)

    def least(self, tokens: int) -> int:
        """Return the fewest tokens of input and output together that these bytes can be, if ``tokens`` are counted."""
        if not self._writes or self._free:
            return 0
        text = self._text.size
        # Most answers need no look at their text.
        if self._scan is None and tokens < self._size // (FLOOR * TEXT_BYTES):
            text = _text_bytes(bytes(self._kept))
        return max(text // (FLOOR * TEXT_BYTES), self._size // _PADDING_BYTES)


_NO_TOKEN = re.compile(rb"event: ?(?:response\.(?!.*delta)|message_|content_block_st|ping)")
"""Events of the Responses and Messages APIs that bring no token."""


class Relay:
    """Passes a stream of events on, counts its tokens, and withholds the event that only it asked for.

    With ``withhold`` a line goes on once it is whole; without, every byte at once. ``writes``: as for ``WholeAnswer``.
    """

    is_stream = True

    def __init__(self, *, withhold: bool, writes: bool = True) -> None:
        self._withhold = withhold
        self._writes = writes
        self._rest = b""
        self._long: _UsageScan | None = None
        """The beginning of a line that is too long to be kept, and has been passed on."""
        self._counts = True
        self._tells, self._counts_left = True, _MOST_COUNTS
        self._other_bytes = 0
        self._names = set[bytes]()
        self.usage = Usage()
        self.events = 0
        """Estimate of the tokens: one for each event with text, and more for a long text."""

    def feed(self, chunk: bytes) -> bytes:
        """Take bytes as they come; return those to send on now."""
        if len(chunk) <= SLICE:
            return self._feed(chunk)
        return b"".join(self._feed(chunk[start : start + SLICE]) for start in range(0, len(chunk), SLICE))

    def _feed(self, chunk: bytes) -> bytes:
        if b"\n" not in chunk and self._long is None and len(self._rest) + len(chunk) <= _LONGEST_LINE:
            self._rest += chunk
            return b"" if self._withhold else chunk
        buffer = self._rest + chunk
        lines = buffer.split(b"\n", _MOST_LINES)
        rest, unseen = lines.pop(), b""
        if len(lines) == _MOST_LINES and (end := rest.rfind(b"\n") + 1):
            unseen, rest = rest[:end], rest[end:]
        self._tells, self._counts_left = _TELLS.search(buffer) is not None, _MOST_COUNTS
        withheld = [index for index, line in enumerate(lines) if self._read(line)]
        if unseen:
            self.skip(len(unseen))
            self._counts = True
        overflow = b""
        if self._long is not None or len(rest) > _LONGEST_LINE:
            self._long = self._long or _UsageScan()
            overflow, rest = rest, b""
            self._long.feed(overflow)
        self._rest = rest
        if not self._withhold:
            return chunk
        if not withheld:
            return buffer[: len(buffer) - len(rest)]
        for index in reversed(withheld):
            del lines[index]
        return b"".join(line + b"\n" for line in lines) + unseen + overflow

    @property
    def kept(self) -> int:
        """As ``WholeAnswer``."""
        return len(self._rest) + (0 if self._long is None else self._long.kept)

    def skip(self, size: int) -> None:
        """As ``WholeAnswer``."""
        self.events += -(-size // (TEXT_BYTES if self._writes else OTHER_BYTES))

    def end(self) -> bytes:
        """Return the bytes left when the stream has ended."""
        rest, self._rest = self._rest, b""
        self._tells, self._counts_left = True, _MOST_COUNTS
        return b"" if self._read(rest) or not self._withhold else rest

    @property
    def output(self) -> int:
        """Tokens generated: by the engine's count, else by the events."""
        if self.usage.output is not None:
            return self.usage.output
        return self.events + max(0, self._other_bytes - FREE_BYTES) // OTHER_BYTES

    @property
    def counted(self) -> Usage:
        """As ``WholeAnswer``."""
        return Usage(self.usage.input, self.output)

    def least(self, tokens: int) -> int:
        """As ``WholeAnswer``."""
        return self.events // FLOOR if self._writes else 0

    def _read(self, line: bytes) -> bool:
        """Count a line; return whether it is to be withheld."""
        if self._long is not None or len(line) > _LONGEST_LINE:
            self._read_long(line)
            return False
        if not line:
            self._counts = True
            return False
        if not line.startswith((b"data:", b"{")):
            if line.startswith(b"event:"):
                self._counts = _NO_TOKEN.match(line) is None
                self._read_name(line)
                return False
            if not self._counts and not line.strip():
                self._counts = True
            if not line.startswith(_FIELDS) and line.strip():
                self.skip(len(line))  # no field of an event, but readable for a client
            else:
                self._other_bytes += len(line)
            return False
        if not self._tells or _TELLS.search(line) is None:
            self._count(line, brings_text=not line.startswith(_DONE) or len(line) > _ENVELOPE_BYTES)
            return False
        self._counts_left -= 1
        if self._counts_left < 0:
            self.skip(len(line))
            return False
        try:
            data = orjson.loads(line.removeprefix(b"data:"))
        except orjson.JSONDecodeError:
            self.usage = self.usage.joined(_last_usage(line))
            self._count(line)
            return False
        self.usage = self.usage.joined(usage_of(data))
        alone = isinstance(data, dict) and data.get("choices") == []
        is_withheld = self._withhold and alone
        self._count(line, brings_text=not alone or (len(line) > _ENVELOPE_BYTES and not is_withheld))
        return is_withheld

    def _read_name(self, line: bytes) -> None:
        """Charge the name of an event as text, unless it is one of a few that come again and again."""
        if line in self._names:
            return
        if len(self._names) < _MOST_NAMES and len(line) <= _LONGEST_NAME:
            self._names.add(line)
        else:
            self.skip(len(line))

    def _read_long(self, line: bytes) -> None:
        scan, self._long = self._long or _UsageScan(), None
        scan.feed(line)
        self.usage = self.usage.joined(scan.usage)
        if self._counts:
            self.skip(scan.size)
        else:
            self._other_bytes += scan.size

    def _count(self, line: bytes, *, brings_text: bool = True) -> None:
        if not (self._counts and brings_text):
            self._other_bytes += len(line)
            return
        if not self._writes:
            self.events += max(1, len(line) // OTHER_BYTES)
            return
        if len(line) <= _LONGEST_TOKEN:
            self.events += 1
            return
        text = _text_bytes(line) or (len(line) if len(line) > _ENVELOPE_BYTES else 0)
        tokens = -(-text // TEXT_BYTES) if text > _LONGEST_TOKEN else 1
        self.events += max(tokens, len(line) // _PIECE_BYTES)


_DONE = (b"data: [DONE]", b"data:[DONE]")
_FIELDS = (b":", b"event:", b"id:", b"retry:")
STREAMS = ("text/event-stream", "application/x-ndjson")
_NOT_TEXT = ("audio", "image", "video")


CountedAnswer = WholeAnswer | Relay
"""An answer that passes through, and its tokens."""


def answer_reader(media: str, status: int, encoding: str, *, writes: bool, withhold: bool) -> CountedAnswer:
    """Return the reader for an answer of this media type, status and ``Content-Encoding``.

    ``writes``: its path is one for text.
    """
    is_error = not 200 <= status < 300
    is_compressed = encoding.strip().lower() not in ("", "identity")
    if media in STREAMS and not is_error and not is_compressed:
        return Relay(withhold=withhold, writes=writes)
    return WholeAnswer(
        _LONGEST_LINE if media == "application/json" else 0,
        writes=writes and media.partition("/")[0] not in _NOT_TEXT,
        is_error=is_error,
        is_compressed=is_compressed,
    )
