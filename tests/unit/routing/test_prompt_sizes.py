"""The estimate of a prompt counts everything that becomes prompt; members that decide the counting have one type."""

from __future__ import annotations

import codecs
import json
from typing import Any

import orjson
import pytest
from hypothesis import given, strategies as st

from modelyard.routing.body import Connector, ModelRequest, estimate, prefill_changes, prompt_of, read, read_form
from modelyard.routing.decide import Arrival, Decider
from modelyard.routing.errors import ErrorAnswer

TEXT = "x" * 4000
"""A thousand tokens."""
HELLO = [{"role": "user", "content": "Hello"}]
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "description": TEXT}}}
FUNCTION = {"name": "find", "description": TEXT, "parameters": {"type": "object"}}


def tokens(body: dict[str, Any]) -> int:
    return estimate(prompt_of(body))


@pytest.mark.parametrize(
    "body",
    [
        {"messages": HELLO, "tools": [{"type": "function", "function": FUNCTION}]},
        {"messages": HELLO, "tools": [{"name": "find", "description": TEXT, "input_schema": {}}]},
        {"messages": HELLO, "functions": [FUNCTION]},
        {"messages": HELLO, "response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
        {"messages": HELLO, "documents": [{"title": "a", "text": TEXT}]},
        {"messages": HELLO, "chat_template_kwargs": {"context": TEXT}},
        {"messages": HELLO, "guided_json": SCHEMA},
        {"messages": HELLO, "never_heard_of": TEXT},
        {"messages": [{"role": "assistant", "content": "", "reasoning_content": TEXT}]},
        {"messages": [{"role": "assistant", "function_call": {"name": "find", "arguments": TEXT}}]},
        {"messages": [{"role": "user", "content": [{"type": "never_heard_of", "text": TEXT}]}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": {"value": TEXT}}]}]},
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": [{"json": [TEXT]}]}]}]},
        {"messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "text", "data": TEXT}}]}]},
        {"messages": [{"role": "tool", "tool_call_id": TEXT, "content": ""}]},
        {"messages": [{"role": TEXT, "content": "a"}]},
        {"messages": [{"name": TEXT, "content": "a"}]},
        {"system": [{"type": "never_heard_of", "text": TEXT}], "messages": HELLO},
        {"input": "Hello", "text": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        {"input": "Hello", "tools": [{"type": "mcp", "server_description": TEXT}]},
        {"input": [{"type": "function_call_output", "call_id": "1", "output": TEXT}]},
        {"input": [{"type": "function_call_output", "call_id": "1", "output": {"rows": [TEXT]}}]},
        {"input": [{"type": "custom_tool_call_output", "call_id": "1", "output": TEXT}]},
        {"input": [{"type": "mcp_list_tools", "tools": [{"description": TEXT}]}]},
        {"input": [{"type": "code_interpreter_call", "code": TEXT}]},
        {"input": [{"type": "reasoning", "encrypted_content": TEXT}]},
        {"prompt": {"id": "template", "variables": {"city": TEXT}}, "input": "Hello"},
        {"prompt": ["x" * 2000, "x" * 2000]},
        {"prompt": "def f(", "suffix": TEXT},
        {"input": ["x" * 2000, "x" * 2000]},
        {"query": "x", "documents": ["x" * 1000] * 4},
        {"query": "x" * 1000, "documents": ["x"] * 4},
        {"query": "x", "documents": [{"text": TEXT}]},
        {"text_1": "x" * 1000, "text_2": ["x"] * 4},
        {"data_1": [TEXT], "data_2": ["x"]},
    ],
    ids=json.dumps,
)  # fmt: skip
def test_everything_that_becomes_prompt_counts(body: dict[str, Any]) -> None:
    assert 1000 <= tokens(body) <= 1120


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ({"type": "image_url", "image_url": {"url": "https://images.example/a.png"}}, 1024),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 4_096_000}}, 4001),
        ({"image_url": "https://images.example/a.png"}, 1024),
        ({"type": "input_image", "file_id": "file-1"}, 1024),
        ({"type": "image", "source": {"type": "base64", "data": "A" * 100}}, 1024),
        ({"type": "input_audio", "input_audio": {"data": "A" * 2_048_000, "format": "wav"}}, 2001),
        ({"type": "video_url", "video_url": {"url": "https://videos.example/a.mp4"}}, 1024),
    ],
    ids=range(7),
)
def test_images_and_sounds_count_by_a_fixed_estimate(part: dict[str, Any], expected: int) -> None:
    for body in ({"messages": [{"role": "user", "content": [part]}]}, {"input": [{"role": "user", "content": [part]}]}):
        assert tokens(body) == pytest.approx(expected, abs=10)
    assert tokens({"messages": [{"role": "user", "content": [part, part]}]}) == pytest.approx(2 * expected, abs=20)


def test_files_count_by_their_size() -> None:
    assert tokens({"prompt": "a cat", "image": "A" * 2_048_000, "mask": "A"}) == pytest.approx(2001 + 1024, abs=3)
    assert tokens({"prompt": "", "prompt_embeds": ["A" * 1_024_000] * 2}) == pytest.approx(2002, abs=60)
    raw = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n--b\r\n'
    raw += (
        b'Content-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n' + b"\0" * 1_024_000 + b"\r\n--b--\r\n"
    )
    form = read_form(raw, "multipart/form-data; boundary=b")
    assert isinstance(form, ModelRequest)
    assert form.ids_cut == 1001


@pytest.mark.parametrize(
    "more",
    [
        {"user": TEXT, "metadata": {"a": TEXT}, "stop": [TEXT], "cache_salt": TEXT, "request_id": TEXT},
        {"max_tokens": 9, "temperature": 0.5, "stream": True, "stream_options": {"include_usage": True}, "n": 3},
        {"logit_bias": {"5": 1}, "allowed_token_ids": [1, 2, 3], "tool_choice": "auto", "tools": None},
    ],
)
def test_what_says_how_to_answer_is_no_prompt(more: dict[str, Any]) -> None:
    assert tokens({"model": "m", "messages": HELLO, **more}) == tokens({"messages": HELLO}) == 9


_NAMES = [
    "role",
    "content",
    "type",
    "text",
    "input",
    "messages",
    "tools",
    "documents",
    "query",
    "image_url",
    "image",
    "x",
]


@given(
    st.dictionaries(
        st.sampled_from(_NAMES),
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers(-9, 9)
            | st.floats(0, 1)
            | st.sampled_from(["", "image_url", "abc"]),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_NAMES), inner, max_size=3),
            max_leaves=20,
        ),
    ),
    st.sampled_from(["messages", "input", "system", "tools", "documents", "never_heard_of"]),
)
def test_more_of_anything_never_counts_as_less(body: dict[str, Any], name: str) -> None:
    longer = {**body, name: [{"role": "user", "content": TEXT}]}
    assert tokens(longer) >= 1000
    assert tokens(body) >= 0


def test_a_value_nested_without_end_is_no_defect() -> None:
    nested: Any = TEXT
    for _ in range(900):
        nested = [{"x": nested}] if len(nested) == 1 else [nested]
    for name in ("messages", "input", "image", "documents", "x"):
        assert tokens({name: nested}) >= 0
    for member in (b'"stream":%b', b'"stream_options":%b', b'"stream_options":{"x":%b}'):
        assert isinstance(read(b'{"model":"m",%b}' % (member % (b"[" * 900 + b"]" * 900))), ErrorAnswer)
    call = {"type": "tool_use", "name": "find", "input": {"x": nested}}
    assert tokens({"messages": [{"role": "assistant", "content": [call]}]}) >= 1000


@pytest.mark.parametrize("value", [1, 0, 1.0, "true", "on", "", [], {}, [True]], ids=repr)
@pytest.mark.parametrize("name", ["stream", "background", "stream_options.include_usage"])
def test_stream_is_a_boolean(name: str, value: Any) -> None:
    holder, _, member = name.partition(".")
    body = {"model": "m", "messages": HELLO, holder: {member: value} if member else value}
    answer = read(orjson.dumps(body))
    assert isinstance(answer, ErrorAnswer)
    error = orjson.loads(answer.body)["error"]
    shown = orjson.dumps(value).decode()
    assert (answer.status, error["param"]) == (400, name)
    assert error["message"] == f"{name} is {shown}; send true or false"


@pytest.mark.parametrize("value", [True, False, None])
def test_a_stream_that_is_a_boolean_or_null_is_taken(value: bool | None) -> None:
    request = read(orjson.dumps({"model": "m", "stream": value, "stream_options": None, "background": value}))
    assert isinstance(request, ModelRequest)
    assert (request.data.get("stream") is True) is (value is True)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"model":"m","stream":true,"stream":1}',
        b'{"model":"m","stream":true,"str\\u0065am":"true"}',
        b'{"model":"m","stream":true,"stream_options":[]}',
        b'{"model":"m","stream":true,"stream_options":"include_usage"}',
        codecs.BOM_UTF8 + b'{"model":"m"}',
        '{"model":"m"}'.encode("utf-16"),
        '{"model":"m"}'.encode("utf-32-le"),
        b'{"model":"m"}\0',
        b'{"model":"m","prompt":"\xff\xfe"}',
        b'{"model":"m","prompt":"\\ud800"}',
    ],
    ids=repr,
)
def test_a_body_that_engines_may_read_in_another_way_is_refused(raw: bytes) -> None:
    answer = read(raw)
    assert isinstance(answer, ErrorAnswer)
    assert answer.status == 400


@pytest.mark.parametrize(
    ("value", "streams"), [("true", True), ("False", False), ("", False), ("1", None), ("on", None)]
)
def test_a_form_says_true_or_false(value: str, streams: bool | None) -> None:
    fields = {"model": "whisper", "stream": value}
    parts = [f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{text}\r\n' for name, text in fields.items()]
    form = read_form("".join([*parts, "--b--\r\n"]).encode(), "multipart/form-data; boundary=b")
    assert (form.data["stream"] if isinstance(form, ModelRequest) else None) is streams


@pytest.mark.parametrize("least", ["5", 5.0, [5], True, 5, 1])
def test_the_prefill_call_has_no_minimum_above_its_one_token(least: Any) -> None:
    changes = prefill_changes({"min_tokens": least}, Connector.STORE)
    assert changes["min_tokens"] is None or changes["min_tokens"] <= 1


@pytest.mark.parametrize("kind", ["multipart/form-data; boundary=b", "Multipart/Form-Data; boundary=b"])
def test_a_form_is_taken_only_where_engines_take_one(kind: str) -> None:
    raw = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--b--\r\n'
    answer = Decider().question(Arrival("POST", "/v1/chat/completions", {"content-type": kind}, raw))
    assert isinstance(answer, ErrorAnswer)
    assert "takes JSON" in answer.message
