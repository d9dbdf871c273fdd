"""Charges of whole answers and streams, by endpoint: the engine's count, the estimate without one, the floor."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import example, given, strategies as st

from modelyard.routing.decide import WRITES
from modelyard.routing.usage import Charge, answer_reader, charge

RECORDED = Path(__file__).parents[2] / "data" / "vllm-0.32"
JSON, SSE = "application/json", "text/event-stream"
ESTIMATE = 10
"""Tokens of each prompt, as the router estimates them."""


def charged(
    path: str, answer: bytes, media: str = JSON, cuts: list[int] | None = None, encoding: str = "", status: int = 200
) -> Charge:
    reader = answer_reader(media, status, encoding, writes=path in WRITES, withhold=False)
    edges = [0, *sorted(cuts or ()), len(answer)]
    sent = b"".join(reader.feed(answer[a:b]) for a, b in itertools.pairwise(edges)) + reader.end()
    assert sent == answer
    return charge(ESTIMATE, reader)


def chat(usage: Any, text: str = "hello", **more: Any) -> bytes:
    answer = {"object": "chat.completion", "choices": [{"index": 0, "message": {"content": text}}], **more}
    return orjson.dumps({**answer, "usage": usage})


def tokens(prompt: Any, output: Any) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "completion_tokens": output}


def delta(text: str, **more: Any) -> bytes:
    return b"data: " + orjson.dumps({"choices": [{"delta": {"content": text}, **more}]}) + b"\n\n"


def event(name: str, **data: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), orjson.dumps({"type": name, **data}))


TEXT = "The quick brown fox. " * 200_000
"""About a million tokens."""
LOGPROBS = [{"token": "ab", "logprob": -1.25, "bytes": [97, 98], "top_logprobs": [{"token": "ab"}] * 20}] * 3000


@pytest.mark.parametrize(
    ("path", "answer", "expected"),
    [
        ("/v1/chat/completions", chat(tokens(5, 2)), Charge(5, 2)),
        ("/v1/chat/completions", chat(tokens(5, 1_000_000), TEXT), Charge(5, 1_000_000)),
        # Behind the count there is more than is kept.
        ("/v1/completions", orjson.dumps({"choices": [{"text": TEXT}], "usage": tokens(100_000, 900_000),
                                          "prompt_logprobs": [{"1": {"logprob": -1.5}}] * 90_000}),
         Charge(100_000, 900_000)),
        ("/v1/completions", orjson.dumps({"usage": tokens(100_000, 900_000), "choices": [{"text": TEXT}]}),
         Charge(100_000, 900_000)),
        ("/v1/responses", (RECORDED / "responses.json").read_bytes(), Charge(16, 8)),
        ("/v1/messages", orjson.dumps({"type": "message", "content": [{"type": "text", "text": "a"}],
                                       "usage": {"input_tokens": 5, "cache_read_input_tokens": 90,
                                                 "output_tokens": 2}}), Charge(95, 2)),
        ("/v1/embeddings", orjson.dumps({"data": [{"embedding": [0.12345678901234] * 100_000}],
                                         "usage": {"prompt_tokens": 7, "total_tokens": 7}}), Charge(7, 0)),
        ("/v1/embeddings", orjson.dumps({"data": [{"embedding": [0.125] * 4000}],
                                         "usage": tokens(7, 0)}), Charge(7, 0)),
        ("/rerank", orjson.dumps({"results": [{"index": 0, "relevance_score": 0.5}], "usage": {"total_tokens": 56}}),
         Charge(56, 0)),
        ("/v1/rerank", orjson.dumps([{"score": 0.5, "index": index, "meta_info": {"prompt_tokens": 30, "id": "1"}}
                                     for index in range(3)]), Charge(90, 0)),
        ("/v1/messages/count_tokens", b'{"input_tokens":5}', Charge(ESTIMATE, 0)),
        ("/v1/score", orjson.dumps({"data": [{"score": 1.0}], "usage": {"prompt_tokens": 30, "total_tokens": 30}}),
         Charge(30, 0)),
        ("/classify", orjson.dumps({"data": [{"label": "a"}], "usage": {"prompt_tokens": 3, "total_tokens": 3,
                                                                         "completion_tokens": 0}}), Charge(3, 0)),
        # Probabilities are many bytes for each token.
        ("/v1/chat/completions", chat(tokens(5, 3000), "ab" * 3000, logprobs=LOGPROBS), Charge(5, 3000)),
        # An engine that repeats the prompt.
        ("/v1/completions", orjson.dumps({"choices": [{"text": "word " * 100_000}], "usage": tokens(100_000, 1)}),
         Charge(100_000, 1)),
    ],
    ids=itertools.count(),
)  # fmt: skip
def test_an_honest_count_is_charged_as_it_is(path: str, answer: bytes, expected: Charge) -> None:
    assert charged(path, answer) == expected
    assert charged(path, answer, cuts=list(range(0, len(answer), 50_001))) == expected


@pytest.mark.parametrize(
    ("path", "answer", "media", "expected"),
    [
        ("/v1/chat/completions", b"x" * 4001, JSON, 1001),
        ("/v1/chat/completions", b"x" * 4_000_001, JSON, 1_000_001),
        ("/v1/chat/completions", b"x" * 400, "text/plain", 100),
        ("/v1/chat/completions", b"x" * 400, "", 100),
        ("/v1/audio/transcriptions", orjson.dumps({"text": "a" * 982, "usage": {"type": "duration"}}), JSON, 256),
        ("/v1/audio/speech", b"\0" * 102_400, "audio/wav", 100),
        ("/v1/images/generations", b"x" * 2_048_000, JSON, 2000),
        ("/v1/embeddings", b"x" * 4096, JSON, 4),
        ("/v1/chat/completions", b"", JSON, 0),
    ],
)
def test_an_answer_without_a_count_is_charged_by_its_bytes(path: str, answer: bytes, media: str, expected: int) -> None:
    assert charged(path, answer, media) == Charge(ESTIMATE, expected)
    assert charged(path, answer, media, list(range(0, len(answer), 999))) == Charge(ESTIMATE, expected)


def test_a_compressed_answer_is_charged_a_token_for_each_byte() -> None:
    assert charged("/v1/chat/completions", b"x" * 400, encoding="gzip") == Charge(ESTIMATE, 400)
    assert charged("/v1/chat/completions", b"x" * 400, SSE, encoding="br") == Charge(ESTIMATE, 400)
    assert charged("/v1/chat/completions", b"x" * 400, encoding="Identity") == Charge(ESTIMATE, 100)


def test_an_error_costs_its_prompt() -> None:
    assert charged("/v1/chat/completions", b"x" * 4000, "text/html", status=500) == Charge(ESTIMATE, 0)
    assert charged("/v1/chat/completions", b"x" * (65_536 + 4000), status=400) == Charge(ESTIMATE, 1000)


@pytest.mark.parametrize(
    "count",
    [-1, 1.5, True, None, "9", [], {}, 10**9 + 1],
    ids=repr,
)
@pytest.mark.parametrize("size", [400, 2_000_000])
def test_a_count_that_is_no_number_of_tokens_is_no_count(count: Any, size: int) -> None:
    raw = chat(tokens(count, count), "x" * size)
    assert charged("/v1/chat/completions", raw) == Charge(ESTIMATE, -(-len(raw) // 4))
    stream = delta("x" * size) + b"data: " + chat(tokens(count, count)) + b"\n\n"
    assert charged("/v1/chat/completions", stream, SSE).output >= size // 4


@pytest.mark.parametrize("number", [b"NaN", b"1" + b"0" * 400, b"-Infinity", b"1e400"])
def test_a_number_that_json_has_not_is_no_count(number: bytes) -> None:
    raw = b'{"choices":[{"message":{"content":"' + b"x" * 400 + b'"}}],"usage":{"completion_tokens":' + number + b"}}"
    assert charged("/v1/chat/completions", raw) == Charge(ESTIMATE, -(-len(raw) // 4))
    assert charged("/v1/chat/completions", b"data: " + raw + b"\n\n", SSE).output == 100


@pytest.mark.parametrize(
    ("path", "answer", "media", "least"),
    [
        ("/v1/chat/completions", chat(tokens(0, 1), "x" * 128_000), JSON, 1000),
        ("/v1/chat/completions", chat(tokens(0, 0), "x" * 4_096_000), JSON, 32_000),
        ("/v1/chat/completions", delta("ab") * 3200 + b"data: " + chat(tokens(0, 0), "") + b"\n\n", SSE, 100),
        ("/v1/completions", b"data: " + chat(tokens(0, 0), "x" * 128_000) + b"\n\n", SSE, 1000),
        ("/v1/responses", event("response.output_text.delta", delta="ab") * 3200
         + event("response.completed", response={"usage": {"input_tokens": 0, "output_tokens": 0}}), SSE, 100),
    ],
)  # fmt: skip
def test_a_count_far_below_the_bytes_is_raised_to_the_floor(path: str, answer: bytes, media: str, least: int) -> None:
    assert sum(charged(path, answer, media)) == pytest.approx(least, rel=0.02)


def test_a_prompt_counted_as_nothing_costs_a_thirty_second_of_its_estimate() -> None:
    reader = answer_reader(JSON, 200, "", writes=True, withhold=False)
    reader.feed(chat(tokens(0, 2)))
    assert charge(32_000, reader) == Charge(1000, 2)


MANY = 20_000


@pytest.mark.parametrize(
    ("path", "stream", "expected"),
    [
        ("/v1/chat/completions", delta("ab") * MANY, MANY),
        ("/v1/chat/completions", delta("x" * 400) * 10, 1000),  # an engine that sends many tokens at once
        ("/v1/chat/completions", delta("ab", logprobs={"content": LOGPROBS[:1]}) * 100, 100),
        ("/v1/messages", event("content_block_delta", delta={"type": "text_delta", "text": "ab"}) * MANY, MANY),
        ("/v1/messages", event("content_block_delta", delta={"partial_json": "x" * 400}) * 10, 1000),
        (
            "/v1/responses",
            event("response.created", response={"tools": ["x" * 50_000]})
            + event("response.output_text.delta", delta="ab") * MANY,
            MANY,
        ),
        ("/v1/responses", event("response.reasoning_text.delta", delta="x" * 400) * 10, 1000),
        ("/v1/responses", event("response.output_text.done", text="x" * 1_089_000) * 2, 2063),
        # Text where nobody looks for it, in lines of other shapes, and in one of megabytes.
        ("/v1/chat/completions", b'data: {"hidden":"' + b"x" * 3983 + b"\n\n", 1000),
        ("/v1/chat/completions", b'{"message":{"content":"' + b"x" * 400 + b'"}}\n', 100),
        ("/v1/chat/completions", b"data: " + b"x" * 3_999_994 + b"\n\n", 1_000_000),
        ("/v1/chat/completions", b"data: " + b"x" * 3_999_994, 1_000_000),
        ("/v1/chat/completions", (b": comment " * 10 + b"\n") * 1000, 33),
        ("/v1/chat/completions", (b"x" * 399 + b"\n") * 10, 1000),
        ("/v1/chat/completions", b"data: [DONE]" + b"x" * 3988 + b"\n\n", 1000),
    ],
    ids=itertools.count(),
)
def test_a_stream_that_ends_without_a_count_is_charged_by_its_text(path: str, stream: bytes, expected: int) -> None:
    assert charged(path, stream, SSE) == Charge(ESTIMATE, expected)
    assert charged(path, stream, SSE, list(range(0, len(stream), 65_536))) == Charge(ESTIMATE, expected)


def test_names_of_events_are_text_unless_they_are_a_few_that_come_again() -> None:
    usual = event("response.created", id="x" * 60) * 300 + event("ping", id="x" * 60) * 300
    assert charged("/v1/responses", usual, SSE) == Charge(ESTIMATE, 0)
    names = b"".join(b"event: %d and fifty more bytes of text that a client can read\n\n" % n for n in range(1000))
    assert charged("/v1/responses", names, SSE).output >= (len(names) - 64 * 32) // 5
    assert charged("/v1/responses", b"event: " + b"text " * 4000 + b"\n\n", SSE).output >= 4000


def test_a_usage_that_a_client_has_repeated_among_its_tools_is_not_charged() -> None:
    tool = {"parameters": {"usage": {"input_tokens": 10**9, "output_tokens": 10**9}}}
    answer = {"tools": [tool], "output": TEXT, "usage": {"input_tokens": 5, "output_tokens": 10**6}}
    assert charged("/v1/responses", orjson.dumps(answer)) == Charge(5, 10**6)
    assert charged("/v1/responses", event("response.completed", response=answer), SSE) == Charge(5, 10**6)


def test_the_smallest_answers_of_many_choices_stay_above_the_floor() -> None:
    opening, closing = delta("", index=0), b'data: {"choices":[{"delta":{},"finish_reason":"length"}]}\n\n'
    counted = b'data: {"choices":[],"usage":{"prompt_tokens":0,"completion_tokens":8}}\n\n'
    stream = opening * 8 + delta("a") * 8 + closing * 8 + counted
    assert charged("/v1/chat/completions", stream, SSE) == Charge(0, 8)


lines = st.one_of(
    st.builds(delta, st.text(max_size=50)),
    st.builds(lambda n, m: b'data: {"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d}}\n\n' % (n, m),
              st.integers(-5, 50), st.integers(-5, 50)),
    st.sampled_from([b"\n", b"\r\n", b": ping\n\n", b"event: ping\n", b"data: [DONE]\n\n", b"data:\n", b"data: {\n",
                     b"{}\n",
                     b'data: {"usage":{"output_tokens":NaN}}\n', event("response.created"),
                     event("response.completed", response={"usage": {"input_tokens": 9, "output_tokens": 4}})]),
    st.binary(max_size=40),
)  # fmt: skip


@given(
    st.lists(lines, max_size=12).map(b"".join),
    st.lists(st.integers(0, 600), max_size=12),
    st.sampled_from([JSON, SSE, "application/x-ndjson", "text/plain"]),
    st.sampled_from(["/v1/chat/completions", "/v1/embeddings"]),
    st.sampled_from([200, 500]),
)
@example(delta("x" * 1_048_540), [1_048_577], SSE, "/v1/chat/completions", 200)
@example(b"x" * 40_000 + chat(tokens(3, 70_000)) + b" " * 40_000, [20_000, 60_000], "text/plain", "/v1/responses", 200)
def test_any_chunking_costs_the_same_and_never_less_than_nothing(
    answer: bytes, cuts: list[int], media: str, path: str, status: int
) -> None:
    inside = [cut for cut in cuts if cut <= len(answer)]
    whole = charged(path, answer, media, status=status)
    assert charged(path, answer, media, inside, status=status) == whole
    assert min(whole) >= 0


@given(st.text(max_size=3000), st.integers(0, 10**9), st.integers(0, 10**9), st.booleans())
def test_no_count_costs_less_than_the_floor(text: str, prompt: int, output: int, streamed: bool) -> None:
    answer = delta(text) + b"data: " + chat(tokens(prompt, output), "") + b"\n\n"
    cost = charged("/v1/completions", answer, SSE) if streamed else charged("/v1/completions", chat({}, text))
    assert cost.input >= ESTIMATE // 32
    assert sum(cost) >= len(text.encode()) // 128
