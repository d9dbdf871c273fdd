"""What a request asks for, the edits to it, the usage in the answer, and what the router answers itself."""

from __future__ import annotations

import itertools
import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelyard.routing import errors
from modelyard.routing.body import (
    Connector,
    ModelRequest,
    Relay,
    Usage,
    decode_changes,
    edited,
    estimate,
    prefill_changes,
    prompt_of,
    read,
    usage_of,
    usage_request,
)
from modelyard.routing.errors import ErrorAnswer, Try, is_retriable, tries
from modelyard.routing.limits import OverBudget
from modelyard.routing.objects import RetryPolicy


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ({"prompt": "San Francisco is a"}, 5),
        ({"messages": [{"role": "user", "content": "hello world"}]}, 10),
        ({"messages": [{"role": "user", "content": "Hello"}]}, 9),
        ({"prompt": "你好世界"}, 1),
        ({"prompt": ""}, 0),
        ({"prompt": "", "messages": [{"role": "user", "content": "Hello"}]}, 9),
        ({"prompt": "San Francisco is a", "messages": []}, 5),
        ({"messages": []}, 0),
        ({"messages": [{"role": "user"}, "text", None]}, 0),
        ({"prompt": ["abcd", "efg"]}, 2),
        ({"prompt": [[1, 2], [3]]}, 2),
        ({"input": "Hello"}, 9),
        ({"input": ["abcd", "efg"]}, 2),
        ({"input": [{"role": "user", "content": [{"type": "input_text", "text": "Hello"}]}]}, 9),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}, {"text": "Hello"}]}]}, 9),
        ({"query": "a", "documents": ["b"]}, 0),
    ],
)
def test_the_estimate_of_tokens(body: dict[str, Any], tokens: int) -> None:
    assert estimate(prompt_of(body)) == tokens


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"[]", b'"x"', b"{} {}", b'{"model":NaN}', b'{"x":1}', b'{"model":1}', b'{"model":" "}',
     b'{"model":"\xff"}',
     b'{"model":"a","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"],
)  # fmt: skip
def test_a_body_that_names_no_model_is_told_so(raw: bytes) -> None:
    found = read(raw)
    assert isinstance(found, ErrorAnswer)
    assert found.status == 400
    assert set(orjson.loads(found.body)["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    "raw",
    [
        b'{"model":"a","prompt":[' + b"1," * 1_000_001 + b"1]}",
        b'{"model":"a","stream":true,"stream_options":{"x":"' + b"x" * 5000 + b'"}}',
    ],
    ids=["a million values", "long options"],
)
def test_a_body_that_would_be_many_times_as_large_once_read_is_refused(raw: bytes) -> None:
    found = read(raw)
    assert isinstance(found, ErrorAnswer)
    assert found.status == 400


def test_what_is_not_edited_keeps_its_bytes() -> None:
    raw = b'{ "n" : 123456789012345678901234567890 , "a":[1, {"model":"x"}],"model": "old","z":1.0e5 }'
    found = read(raw)
    assert isinstance(found, ModelRequest)
    assert edited(raw, {}) is raw
    assert edited(raw, {"model": 'new "one"'}) == (
        b'{"n":123456789012345678901234567890,"a":[1, {"model":"x"}],"model":"new \\"one\\"","z":1.0e5}'
    )
    assert edited(b"{}", {"a": None, "b": 1}) == b'{"b":1}'
    assert edited(b'{"\\u006dodel":"old","model":"older"}', {"model": "new"}) == b'{"model":"new"}'


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), _JSON), st.dictionaries(st.text(), st.none() | st.text()), st.sampled_from([None, 1]))
def test_edits_change_what_they_name_and_nothing_else(
    body: dict[str, Any], changes: dict[str, Any], indent: int | None
) -> None:
    raw = json.dumps(body, indent=indent, ensure_ascii=indent is None).encode("utf-8", "replace")
    body = json.loads(raw)
    wanted = {name: value for name, value in {**body, **changes}.items() if changes.get(name, 0) is not None}
    assert json.loads(edited(raw, changes)) == wanted


def test_a_stream_is_asked_for_its_usage() -> None:
    assert usage_request({}) == {}
    assert usage_request({"stream": "true"}) == {}
    assert usage_request({"stream": True, "stream_options": {"include_usage": True}}) == {}
    asked = usage_request({"stream": True, "stream_options": {"continuous": 1, "include_usage": False}})
    assert asked == {"stream_options": {"continuous": 1, "include_usage": True}}


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
    assert relay.output == 4
    assert usage_of({"usage": {"input_tokens": 2, "output_tokens": True}}) == Usage(2, None)


def test_a_line_without_end_is_not_held() -> None:
    relay = Relay(withhold=True)
    assert sum(len(relay.feed(b"x" * 65536)) for _ in range(64)) >= 3 << 20


BODY = {"model": "m", "stream": True, "stream_options": {}, "max_tokens": 50, "min_tokens": 9, "n": 2,
        "max_completion_tokens": 9, "kv_transfer_params": "mine", "prompt": "p"}  # fmt: skip


@pytest.mark.parametrize(
    ("engine", "configured", "connector"),
    [
        ("vLLM", "", Connector.STORE),
        ("vLLM", "lmcache", Connector.STORE),
        ("vLLM", "nixl", Connector.NIXL),
        ("SGLang", "mooncake", Connector.NIXL),
        ("SGLang", "", Connector.BOOTSTRAP),
        ("SGLang", "http", Connector.STORE),
    ],
)
def test_connectors(engine: str, configured: str, connector: Connector) -> None:
    assert Connector.of(engine, configured) is connector


def test_prefill_and_decode_bodies() -> None:
    raw = orjson.dumps(BODY)
    plain = json.loads(edited(raw, prefill_changes(BODY, Connector.STORE)))
    assert plain == {"model": "m", "max_tokens": 1, "min_tokens": 1, "max_completion_tokens": 1,
                     "kv_transfer_params": "mine", "prompt": "p"}  # fmt: skip
    nixl = json.loads(edited(raw, prefill_changes(BODY, Connector.NIXL)))
    assert nixl["kv_transfer_params"]["do_remote_decode"] is True
    params = {"remote_host": "h"}
    decode = json.loads(edited(raw, decode_changes(BODY, Connector.NIXL, {"kv_transfer_params": params})))
    assert decode == {**BODY, "stream_options": {"include_usage": True}, "kv_transfer_params": params}
    assert "kv_transfer_params" not in json.loads(edited(raw, decode_changes(BODY, Connector.NIXL, {})))
    room = 2**62
    assert prefill_changes(BODY, Connector.BOOTSTRAP, room)["bootstrap_room"] == room
    assert json.loads(edited(raw, decode_changes(BODY, Connector.BOOTSTRAP, room=room, host="10.0.0.1"))) == {
        **BODY, "stream_options": {"include_usage": True}, "bootstrap_room": room, "bootstrap_host": "10.0.0.1"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "status", "fragment", "after"),
    [
        (errors.malformed("model not found", "model"), 400, "model not found", None),
        (errors.unauthorized("Unauthorized: no token"), 401, "Unauthorized", None),
        (errors.unknown_model("x" * 9999), 404, "route not found", None),
        (errors.no_server("ns/a"), 404, "can't find model server: ns/a", None),
        (errors.no_pods("ns/a"), 503, "no available pods for model server: ns/a", "5"),
        (errors.overloaded('filtered out by "least-request"'), 503, "can't schedule to target pod", "5"),
        (errors.limited(OverBudget("input", 90.6)), 429, "input token rate limit exceeded", "91"),
        (errors.limited(OverBudget("output", 0.0)), 429, "output token rate limit exceeded", "1"),
        (errors.limited(OverBudget("input", None)), 429, "input token rate limit exceeded", None),
        (errors.failed(timed_out=False), 502, "request to all pods failed", None),
        (errors.failed(timed_out=True), 504, "request to all pods failed", None),
        (errors.failed(timed_out=False, paired=True), 502, "all prefill/decode attempts failed", None),
        (errors.queue_timeout(), 504, "Request processing timed out", "5"),
    ],
)
def test_answers(answer: ErrorAnswer, status: int, fragment: str, after: str | None) -> None:
    assert answer.status == status
    assert fragment in orjson.loads(answer.body)["error"]["message"]
    assert len(answer.body) < 1000
    assert answer.headers.get("Retry-After") == after


def test_tries() -> None:
    assert list(tries(9, None)) == [Try(index, 0.0) for index in range(5)]
    assert list(tries(2, None)) == [Try(0, 0.0), Try(1, 0.0)]
    assert list(tries(2, RetryPolicy(2, 0.1))) == [Try(0, 0.0), Try(1, 0.1), Try(0, 0.1)]
    assert list(tries(2, RetryPolicy(0, 0.1))) == [Try(0, 0.0)]
    assert list(tries(0, RetryPolicy(3, 0.1))) == []
    statuses = (None, 200, 400, 404, 429, 500, 502, 503, 504)
    assert [one for one in statuses if is_retriable(one, others=False)] == [None, 502, 503, 504]
    assert is_retriable(429, others=True)
