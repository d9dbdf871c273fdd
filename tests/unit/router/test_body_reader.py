"""Long bodies are read by another process, in fair order."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from modelyard.router.process.body_reader import BodyReader, is_long
from modelyard.router.process.processor_shares import Account, ProcessorShares
from modelyard.routing.body import (
    BodySummary,
    ModelRequest,
    edited,
    find_segments,
    likely_model,
    read,
    summarize,
    with_changes,
)
from modelyard.routing.errors import ErrorAnswer

JSON = "application/json"
IDS = list(range(300_000))


@pytest.fixture
async def reader() -> AsyncIterator[BodyReader]:
    client = BodyReader()
    yield client
    await client.close()


def account(client: str = "10.0.0.7") -> Account:
    return ProcessorShares().open(("client", client))


def body(**members: Any) -> bytes:
    return orjson.dumps({"model": "llama", **members})


@pytest.mark.parametrize(
    ("raw", "long"),
    [
        (body(messages=[{"role": "user", "content": "x" * 200_000}]), False),
        (body(prompt="x" * 300_000), True),
        (body(prompt=IDS[:900]), False),
        (body(prompt=IDS[:20_000]), True),
        (body(messages=[{}] * 6000), True),
        (body(**{f"k{number}": 1 for number in range(6000)}), True),
        (body(tools=[[[[]]]] * 5000), True),
    ],
)
def test_a_body_with_many_values_is_long_however_short_it_is(raw: bytes, long: bool) -> None:
    assert is_long(raw) is long


FORM = b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nllama\r\n--x--\r\n' + b" " * 300_000


async def test_it_reads_what_would_be_read_here(reader: BodyReader) -> None:
    bodies = [
        body(prompt=IDS, stream=True, n=3),
        body(prompt=[IDS, IDS]),
        body(messages=[{"role": "user", "content": "\U0001f600 \\u0041" * 90_000}]),
        body(messages=[{"role": "user", "content": [{"type": "text", "text": "a"}] * 9}] * 9000),
        body(**{f"k{number}": number for number in range(90_000)}),
        body(tools=[{"type": "function", "function": {"parameters": {"a": [1] * 9}}}] * 9000),
        b'{"model":"llama","x":' + b"[" * 90_000 + b"]" * 90_000 + b"}",
        b"{" * 120_000,
        b"\xff" * 300_000,
    ]
    for raw in bodies:
        assert is_long(raw)
        mine = account()
        assert await reader.read(raw, JSON, 5000, mine) == summarize(raw, JSON, 5000)
        assert mine.used > 0
    kind = "multipart/form-data; boundary=x"
    form = await reader.read(FORM, kind, 5000, account())
    assert form == summarize(FORM, kind, 5000)
    assert isinstance(form, BodySummary)


async def test_a_long_body_of_one_client_waits_for_one_of_another_and_not_for_all(reader: BodyReader) -> None:
    shares, order = ProcessorShares(), list[str]()

    async def send(name: str, client: str) -> None:
        await reader.read(body(prompt=IDS), JSON, 100, shares.open(("client", client)))
        order.append(name)

    sent = [asyncio.create_task(send("attacker", "10.0.0.66")) for _ in range(6)]
    while not len(reader._waiting):
        await asyncio.sleep(0)
    sent.append(asyncio.create_task(send("neighbour", "10.0.0.7")))
    gone = asyncio.create_task(send("gone", "10.0.0.8"))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(*sent)
    assert order == ["attacker", "neighbour", *["attacker"] * 5]
    assert (len(reader._waiting.accounts), len(reader._waiting)) == (0, 0)


async def test_behind_a_proxy_a_long_body_waits_for_one_of_each_other_namespace_and_a_shorter_one_for_none(
    reader: BodyReader,
) -> None:
    shares, order = ProcessorShares(), list[str]()

    async def send(name: str, size: int = 300_000) -> None:
        await reader.read(body(prompt=IDS[:size]), JSON, 100, shares.open(("client", "10.0.0.9")), name)
        order.append(name)

    sent = [asyncio.create_task(send("attacker")) for _ in range(6)]
    while not len(reader._waiting):
        await asyncio.sleep(0)
    sent += [asyncio.create_task(send("neighbour")) for _ in range(2)]
    sent.append(asyncio.create_task(send("", 50_000)))
    await asyncio.gather(*sent)
    assert order[0] == "attacker"
    assert order.index("") == 1
    assert order.index("neighbour") <= 2, "the first of both is before the third of the attacker's"
    assert "neighbour" in order[4:6]
    assert not reader._in_progress._by_owner, "nothing is kept"


async def test_a_client_that_leaves_while_its_body_is_read_delays_nobody_for_ever(reader: BodyReader) -> None:
    leaving = asyncio.create_task(reader.read(body(prompt=IDS), JSON, 100, account()))
    while not reader._jobs:
        await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    summary = await reader.read(body(prompt="x" * 300_000), JSON, 3, account())
    assert isinstance(summary, BodySummary)
    assert summary.head == "xxx"


async def test_a_body_that_ends_the_process_costs_only_itself_an_answer(reader: BodyReader) -> None:
    await reader.start()
    assert reader._process is not None
    os.kill(reader._process.pid, signal.SIGSTOP)
    lost = asyncio.create_task(reader.read(body(prompt=IDS), JSON, 100, account()))
    while not reader._jobs:
        await asyncio.sleep(0)
    later = asyncio.create_task(reader.read(body(prompt=IDS), JSON, 100, account()))
    await asyncio.sleep(0)
    os.kill(reader._process.pid, signal.SIGKILL)
    refused = await lost
    assert isinstance(refused, ErrorAnswer)
    assert refused.status == 503
    assert isinstance(await later, BodySummary)


async def test_members_of_a_long_body_are_removed_by_the_segments_that_it_finds(reader: BodyReader) -> None:
    raw = body(prompt=IDS[:90_000], stream=True, n=2, temperature=1, best_of=3) + b"\n"
    segments = await reader.find_segments(raw, account())
    assert segments == find_segments(raw)
    request = read(raw)
    assert isinstance(request, ModelRequest)
    assert not isinstance(segments, ErrorAnswer)
    changes = {"stream": None, "n": None, "background": None, "max_tokens": 1}
    changed = with_changes(request._replace(segments=segments), changes)
    assert changed == edited(raw, changes)
    assert orjson.loads(changed) == {
        "model": "llama",
        "prompt": IDS[:90_000],
        "temperature": 1,
        "best_of": 3,
        "max_tokens": 1,
    }
    repeated = b'{"model":"llama"' + b',"n":2,"x":3' * 5000 + b"}"
    refused = await reader.find_segments(repeated, account())
    assert isinstance(refused, ErrorAnswer)
    assert refused.status == 400


@pytest.mark.parametrize(
    ("raw", "model"),
    [
        (body(prompt="x" * 300_000), "llama"),
        (orjson.dumps({"prompt": "x" * 300_000, "model": "llama"}), "llama"),
        (b'{ "model" : "a \\u0062", "prompt":""}', ""),
        (b'{"model":' + b" " * 300_000 + b'"llama"}', ""),
        (b'{"model":"' + b"x" * 300_000, ""),
        (b"\xff" * 300_000, ""),
    ],
)
def test_the_model_of_a_long_body_shows_at_its_beginning_or_its_end(raw: bytes, model: str) -> None:
    assert likely_model(raw) == model
