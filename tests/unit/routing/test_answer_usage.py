"""The tokens that engines count in their answers, from recordings of vLLM 0.32 and what other servers send."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, strategies as st

from modelyard.routing.usage import Relay, Usage, WholeAnswer, usage_of

RECORDED = Path(__file__).parents[2] / "data" / "vllm-0.32"


def relayed(raw: bytes, cuts: list[int] | None = None, withhold: bool = False) -> tuple[bytes, Relay]:
    """Return what a relay passes on of a stream that comes in pieces, and the relay."""
    relay, edges = Relay(withhold=withhold), [0, *sorted(cuts or ()), len(raw)]
    return b"".join(relay.feed(raw[a:b]) for a, b in itertools.pairwise(edges)) + relay.end(), relay


@pytest.mark.parametrize(
    ("name", "usage"),
    [
        ("responses-stream.sse", Usage(31, 8)),
        ("messages-stream.sse", Usage(16, 8)),
        ("chat-stream-usage.sse", Usage(16, 8)),
        ("chat-stream-continuous-usage.sse", Usage(16, 8)),
        ("completions-stream-usage.sse", Usage(4, 8)),
        ("chat-stream.sse", Usage(None, 9)),
    ],
)
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"], ids=["LF", "CRLF"])
@given(cuts=st.lists(st.integers(0, 5000), max_size=9))
def test_the_usage_of_recorded_streams(name: str, usage: Usage, line_end: bytes, cuts: list[int]) -> None:
    raw = (RECORDED / name).read_bytes().replace(b"\n", line_end)
    sent, relay = relayed(raw, cuts)
    assert sent == raw
    assert relay.counted == usage


@pytest.mark.parametrize(
    ("name", "usage"),
    [("responses-stream.sse", Usage(None, 6)), ("messages-stream.sse", Usage(16, 8))],
)
def test_a_recorded_stream_that_breaks_off_is_charged_by_its_events(name: str, usage: Usage) -> None:
    raw = (RECORDED / name).read_bytes()
    last = max(raw.find(b"event: response.completed"), raw.find(b"event: message_delta"))
    assert relayed(raw[:last])[1].counted == usage


def test_the_usage_of_a_recorded_answer() -> None:
    raw = (RECORDED / "responses.json").read_bytes()
    assert usage_of(orjson.loads(raw)) == Usage(16, 8)
    answer = WholeAnswer()
    assert answer.feed(raw[:100]) + answer.feed(raw[100:]) + answer.end() == raw
    assert answer.counted == Usage(16, 8)


def event(name: str, **data: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), orjson.dumps({"type": name, **data}))


def start(**usage: int | None) -> bytes:
    return event("message_start", message={"id": "1", "usage": usage})


@pytest.mark.parametrize(
    ("raw", "usage"),
    [
        (event("response.incomplete", response={"usage": {"input_tokens": 9, "output_tokens": 4}}), Usage(9, 4)),
        (event("response.failed", response={"usage": {"input_tokens": 9, "output_tokens": 0}}), Usage(9, 0)),
        (event("response.failed", response={"usage": None, "tools": [{"usage": {"type": "x"}}]}), Usage(None, 0)),
        # Messages API: what the cache had is counted apart, and the last event has the output alone.
        (start(input_tokens=3, cache_read_input_tokens=900, cache_creation_input_tokens=97, output_tokens=1)
         + event("message_delta", usage={"output_tokens": 300}), Usage(1000, 300)),
        # vLLM and SGLang learn what the cache had at the end.
        (start(input_tokens=1000, output_tokens=0)
         + event("message_delta", usage={"input_tokens": 200, "cache_read_input_tokens": 800, "output_tokens": 7}),
         Usage(1000, 7)),
        (start(input_tokens=0, cache_read_input_tokens=None) + event("ping")
         + event("message_delta", usage={"input_tokens": 12, "output_tokens": 7}), Usage(12, 7)),
        # Nothing told at the end: the deltas.
        (start(input_tokens=12, output_tokens=1) + event("content_block_start") + event("content_block_delta") * 5
         + event("content_block_stop") + event("message_stop"), Usage(12, 5)),
        (event("response.created") + event("response.function_call_arguments.delta") * 3, Usage(None, 3)),
        # A name without data says nothing of the next event.
        (b"event: ping\n\n" + b'data: {"choices":[{}]}\n\n' * 2, Usage(None, 2)),
        (b'event: completion\ndata: {"choices":[{}]}\n\n' * 2, Usage(None, 2)),
        # The last line has no end.
        (event("response.completed", response={"usage": {"input_tokens": 9, "output_tokens": 4}})[:-2], Usage(9, 4)),
    ],
)  # fmt: skip
def test_the_usage_of_streams(raw: bytes, usage: Usage) -> None:
    for cuts in ([], list(range(0, len(raw), 7))):
        sent, relay = relayed(raw, cuts)
        assert sent == raw
        assert relay.counted == usage


@pytest.mark.parametrize(
    ("answer", "usage"),
    [
        ({"usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}}, Usage(5, 2)),
        ({"usage": {"prompt_tokens": 5, "total_tokens": 5}}, Usage(5, 0)),
        ({"usage": {"total_tokens": 5}}, Usage(5, None)),
        ({"usage": {"completion_tokens": 9, "total_tokens": 5}}, Usage(None, 9)),
        ({"usage": {"input_tokens": 5, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 4}}}, Usage(5, 2)),
        ({"type": "message", "usage": {"input_tokens": 5, "cache_read_input_tokens": 90,
          "cache_creation_input_tokens": None, "output_tokens": 2}}, Usage(95, 2)),
        ({"usage": {"prompt_tokens": None, "input_tokens": 5, "completion_tokens": None, "output_tokens": 2}},
         Usage(5, 2)),
        ({"usage": {"input_tokens": 2, "output_tokens": True}}, Usage(2, None)),
        ({"usage": {"prompt_tokens": -1, "completion_tokens": 1.5}}, Usage()),
        # No counts: their sum has more bits than a log can show, and more tokens than a budget gets in years.
        ({"usage": {"input_tokens": 2**64 - 1, "cache_read_input_tokens": 2**64 - 1, "output_tokens": 2}},
         Usage(None, 2)),
        ({"usage": {"input_tokens": 5, "cache_read_input_tokens": 2**63, "output_tokens": 10**9 + 1}}, Usage(5, None)),
        ({"usage": None}, Usage()),
        ({"message": "no", "response": [1]}, Usage()),
        ([], Usage()),
    ],
)  # fmt: skip
def test_the_usage_of_answers(answer: Any, usage: Usage) -> None:
    assert usage_of(answer) == usage


@pytest.mark.parametrize("size", [10, 2_000_000])
@pytest.mark.parametrize("most", [0, 1 << 20])
@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": 5, "completion_tokens": 2},
        {"input_tokens": 5, "input_tokens_details": {"per_turn": [5]}, "output_tokens": 2, "output_tokens_details": {}},
    ],
)
def test_the_usage_of_a_long_answer_is_read_in_its_last_bytes(size: int, most: int, usage: dict[str, Any]) -> None:
    text = '"usage":{"prompt_tokens":9000}' * (size // 30)
    raw = orjson.dumps({"data": [text], "usage": usage, "user": '"usage":{}'})
    answer = WholeAnswer(most)
    assert b"".join(answer.feed(raw[at : at + 65536]) for at in range(0, len(raw), 65536)) == raw
    assert answer.counted == Usage(5, 2)


@pytest.mark.parametrize("withhold", [True, False])
def test_the_usage_in_a_line_of_megabytes_is_read(withhold: bool) -> None:
    long = event(
        "response.completed", response={"output": "x" * 3_000_000, "usage": {"input_tokens": 9, "output_tokens": 4}}
    )
    raw = event("response.output_text.delta", delta="a") + long + b"data: [DONE]\n\n"
    sent, relay = relayed(raw, list(range(0, len(raw), 65536)), withhold)
    assert sent == raw
    assert relay.counted == Usage(9, 4)


CONTENT = b'data: {"choices":[{"delta":{"content":"\xc3\xa4"}}],"usage":null}\r\n\r\n'
TOLD = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":7,"total_tokens":10}}\n'
STREAM = CONTENT + TOLD + b"\ndata: [DONE]\n\n"


@given(st.lists(st.integers(0, len(STREAM)), max_size=12), st.booleans())
def test_only_the_usage_that_the_router_asked_for_is_withheld(cuts: list[int], withhold: bool) -> None:
    relay, edges = Relay(withhold=withhold), [0, *sorted(cuts), len(STREAM)]
    sent = b"".join(relay.feed(STREAM[a:b]) for a, b in itertools.pairwise(edges)) + relay.end()
    assert sent == (CONTENT + b"\ndata: [DONE]\n\n" if withhold else STREAM)
    assert (relay.usage, relay.output, relay.events) == (Usage(3, 7), 7, 1)


def test_usage_on_a_chunk_with_content_goes_on_and_the_last_counts() -> None:
    relay = Relay(withhold=True)
    chunks = b"".join(b'data: {"choices":[{}],"usage":{"completion_tokens":%d}}\n\n' % n for n in (1, 2, 3))
    assert relay.feed(chunks) == chunks
    assert relay.output == 3


def test_without_usage_events_are_counted_and_broken_lines_go_on() -> None:
    relay = Relay(withhold=True)
    sent = CONTENT * 4 + b'data: {"usage": {broken\n\n: comment\ndata: [DONE]'
    assert relay.feed(sent) + relay.end() == sent
    assert relay.output == 5


def test_a_line_without_end_is_not_held() -> None:
    relay = Relay(withhold=True)
    assert sum(len(relay.feed(b"x" * 65536)) for _ in range(64)) >= 3 << 20
