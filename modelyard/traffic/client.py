"""Sending one streamed request and timing its answer, at little cost per chunk.

The stream is not parsed: the first chunk with content is found by a byte pattern, and the numbers of tokens come from
the usage in the last chunk. Times are those of the event loop's clock (wall seconds).
"""

from __future__ import annotations

import asyncio
import re
from typing import Final, NamedTuple

import aiohttp
import orjson

from modelyard.traffic.latency import Ending

_CONTENT: Final = re.compile(rb'"(?:content|text)":\s*"[^"]')
_PROMPT_TOKENS: Final = re.compile(rb'"prompt_tokens":\s*(\d+)')
_OUTPUT_TOKENS: Final = re.compile(rb'"completion_tokens":\s*(\d+)')
_DONE: Final = b"data: [DONE]"
# Enough for the usage chunk and [DONE].
_TAIL: Final = 2048


class RequestFailed(Exception):
    """``ending`` says of which kind, the message has the details; ``status`` is the HTTP status if there was one."""

    def __init__(self, ending: Ending, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.ending = ending
        self.status = status


class Answered(NamedTuple):
    """A complete answer: when its first and last tokens came, and the usage that the engine reported."""

    first: float
    last: float
    prompt_tokens: int
    output_tokens: int


def chat_body(model: str, prompt_tokens: int, output_tokens: int) -> bytes:
    """A chat request whose prompt has ``prompt_tokens`` words and whose answer has exactly ``output_tokens`` tokens."""
    head = {
        "model": model,
        "max_tokens": output_tokens,
        "min_tokens": output_tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return b"".join(
        (orjson.dumps(head)[:-1], b',"messages":[{"role":"user","content":"', b"tok " * prompt_tokens, b'"}]}')
    )


def open_session() -> aiohttp.ClientSession:
    """A session for any number of concurrent streams. Bound each request's time by ``asyncio.timeout``."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=5.0),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"Content-Type": "application/json"},
        auto_decompress=False,
    )


async def send(session: aiohttp.ClientSession, base_url: str, body: bytes) -> Answered:
    """POST ``body`` to the engine's chat endpoint and read the stream to its end. Raises ``RequestFailed``."""
    clock = asyncio.get_running_loop().time
    begun = False
    try:
        async with session.post(f"{base_url}/v1/chat/completions", data=body) as response:
            if response.status != 200:
                text = (await response.content.read(500)).decode(errors="replace")
                ending = Ending.UNAVAILABLE if response.status == 503 else Ending.REJECTED
                raise RequestFailed(ending, f"HTTP {response.status}: {text}", response.status)
            begun = True
            first: float | None = None
            last = 0.0
            tail = b""
            read = response.content.readany
            while data := await read():
                last = clock()
                if first is None and _CONTENT.search(data):
                    first = last
                tail = data if len(data) >= _TAIL else tail[-_TAIL:] + data
    except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
        ending = Ending.BROKEN if begun else Ending.UNAVAILABLE
        raise RequestFailed(ending, f"{type(error).__name__}: {error}") from error
    prompt_tokens, output_tokens = _PROMPT_TOKENS.search(tail), _OUTPUT_TOKENS.search(tail)
    if first is None or _DONE not in tail or prompt_tokens is None or output_tokens is None:
        raise RequestFailed(Ending.BROKEN, f"the stream ended without content, usage or [DONE]: ...{tail[-200:]!r}")
    return Answered(first, last, int(prompt_tokens[1]), int(output_tokens[1]))
