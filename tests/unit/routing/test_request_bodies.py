"""What a request asks for, the edits to it, and what the router answers itself."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given, strategies as st

from modelyard.routing import errors
from modelyard.routing.body import (
    Connector,
    ModelRequest,
    decode_changes,
    edited,
    estimate,
    prefill_changes,
    prompt_of,
    read,
    usage_request,
)
from modelyard.routing.errors import ErrorAnswer, is_retriable, tries
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
        ({"prompt": [[1, 2], [3]]}, 3),
        ({"input": "Hello"}, 9),
        ({"input": ["abcd", "efg"]}, 2),
        ({"input": [{"role": "user", "content": [{"type": "input_text", "text": "Hello"}]}]}, 9),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}, {"text": "Hello"}]}]}, 9),
        ({"query": "a", "documents": ["b"]}, 1),
        ({"input": [1, 2, 3]}, 3),
        ({"prompt": [1.0, 2.0, 3.0]}, 3),
        ({"prompt": ["abcd", 7]}, 2),
        ({"input": "Hello", "prompt": None}, 9),
        # Of 24 characters and the role around each text, 62 for the instructions and 33 for the user's.
        ({"input": "Hello", "instructions": "Answer in one short sentence."}, 24),
        ({"input": [{"role": "user", "content": "Hello"}], "instructions": "Answer in one short sentence."}, 24),
        ({"instructions": "Answer in one short sentence.", "previous_response_id": "resp_1"}, 16),
        ({"input": "Hello", "instructions": None}, 9),
        ({"input": [{"type": None, "role": "user", "content": "Hello"}]}, 9),
        ({"input": [{"type": "function_call_output", "call_id": "1", "output": "x" * 399}]}, 111),
        ({"input": [{"type": "function_call_output", "output": [{"type": "input_text", "text": "x" * 399}]}]}, 111),
        ({"input": [{"type": "function_call", "name": "find", "arguments": "{}", "call_id": "1"}]}, 11),
        ({"input": [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "x" * 399}]}]}, 108),
        ({"input": [{"type": "item_reference", "id": "x"}, {"type": 1}, None, 3, [], "abc"]}, 8),
        ({"messages": [{"role": "user", "content": "Hello"}], "system": "Be brief."}, 18),
        ({"messages": [{"role": "user", "content": "Hello"}], "system": [{"type": "text", "text": "Be brief."}]}, 18),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "x" * 400}]}]}, 107),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "tool_result", "content": [{"type": "text", "text": "x" * 400}]}],
                    }
                ]
            },
            107,
        ),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "name": "find", "input": {"a": 1}}]}]},
            12,
        ),
        (
            {
                "messages": [
                    {
                        "role": "assistant",
                        "content": None,
                        "tool_calls": [{"function": {"name": "find", "arguments": "{}"}}, None, {"function": 1}],
                    }
                ]
            },
            10,
        ),
    ],
)
def test_the_estimate_of_tokens(body: dict[str, Any], tokens: int) -> None:
    assert estimate(prompt_of(body)) == tokens


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["role", "content", "type", "text", "input", "instructions", "messages", "system", "prompt",
                         "tool_calls", "function", "name", "arguments", "output", "summary"]), inner, max_size=4),
    max_leaves=30,
).filter(lambda data: isinstance(data, dict)))  # fmt: skip
def test_no_body_breaks_the_estimate(data: Any) -> None:
    assert estimate(prompt_of(data)) >= 0


@pytest.mark.parametrize("depth", [5, 1000])
def test_a_prompt_nested_without_end_is_no_defect(depth: int) -> None:
    lists: Any = "text"
    for _ in range(depth):
        lists = [lists]
    parts: Any = "text"
    for _ in range(depth):
        parts = [{"type": "tool_result", "content": parts}]
    assert prompt_of({"prompt": lists, "messages": [{"role": "user", "content": parts}], "input": lists}) is not None


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
        (errors.limited(OverBudget("input", 90.6)), 429, "input token rate limit exceeded: try again in 91 s", "91"),
        (errors.limited(OverBudget("output", 0.0)), 429, "output token rate limit exceeded: try again in 1 s", "1"),
        (
            errors.limited(OverBudget("input", None)),
            429,
            "input token rate limit exceeded: the prompt is larger than the whole budget; shorten it",
            None,
        ),
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
    assert tries(9, None) == [0, 1, 2, 3, 4]
    assert tries(2, None) == [0, 1]
    assert tries(2, RetryPolicy(2, 0.1)) == [0, 1, 0]
    assert tries(2, RetryPolicy(0, 0.1)) == [0]
    assert tries(0, RetryPolicy(3, 0.1)) == []
    statuses = (None, 200, 400, 404, 429, 500, 502, 503, 504)
    assert [one for one in statuses if is_retriable(one, others=False)] == [None, 502, 503, 504]
    assert is_retriable(429, others=True)
