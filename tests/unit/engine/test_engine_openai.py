"""Reading OpenAI requests, and saying what is wrong with them."""

import json

import pytest

from modelyard.engine.openai import Answer, ApiError, parse_generation

CHAT = {"model": "m", "messages": [{"role": "user", "content": "one two three"}]}
TEXT = {"model": "m", "prompt": "one two"}


def parse(data, *, chat):
    return parse_generation(json.dumps(data).encode(), chat=chat)


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        ("one two  three\nfour", 4),
        ("", 1),
        ([5, 6, 7], 3),
        (["one two"], 2),
        ([[1, 2, 3, 4]], 4),
        ("word " * 5000, 5000),
    ],
)
def test_prompts_are_counted(prompt, tokens):
    assert parse(TEXT | {"prompt": prompt}, chat=False).prompt_tokens == tokens


def test_prompts_share_the_names_of_segments_as_far_as_they_begin_alike():
    one, two = ({"messages": [CHAT["messages"][0], {"role": "user", "content": text}]} for text in ("a b c d", "a b x"))
    names = [
        parse_generation(json.dumps(CHAT | change).encode(), chat=True, segment=2).prefix for change in (one, two, {})
    ]
    assert [len(found) for found in names] == [3, 3, 1]
    assert names[0][:2] == names[1][:2] != names[2]
    assert names[0][2] != names[1][2]
    assert names[2] == names[0][:1]
    assert parse(CHAT, chat=True).prefix == ()


@pytest.mark.parametrize(
    ("messages", "tokens"),
    [
        ([{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello there you"}], 5),
        ([{"role": "user", "content": [{"type": "text", "text": "a b"}, {"type": "text", "text": "c"}]}], 3),
        ([{"role": "assistant", "content": None}], 1),
    ],
)
def test_messages_are_counted(messages, tokens):
    assert parse(CHAT | {"messages": messages}, chat=True).prompt_tokens == tokens


def test_defaults():
    chat, text = parse(CHAT, chat=True), parse(TEXT, chat=False)
    assert chat.max_tokens is None
    assert text.max_tokens == 16
    assert (chat.stream, chat.ignore_eos, chat.include_usage) == (False, False, False)
    assert parse(CHAT | {"max_tokens": None, "stream": None, "n": 1}, chat=True) == chat


def test_max_completion_tokens_wins_over_max_tokens():
    assert parse(CHAT | {"max_tokens": 5, "max_completion_tokens": 9}, chat=True).max_tokens == 9
    assert parse(CHAT | {"max_tokens": 5}, chat=True).max_tokens == 5


@pytest.mark.parametrize(
    ("chat", "change", "param", "words"),
    [
        (True, {"model": None}, "model", "must be a string"),
        (True, {"messages": []}, "messages", "non-empty array"),
        (True, {"messages": "hello"}, "messages", "not a string"),
        (True, {"messages": ["hello"]}, "messages[0]", "must be an object"),
        (True, {"messages": [{"content": "x"}]}, "messages[0].role", "must be a string"),
        (True, {"messages": [{"role": "user", "content": 7}]}, "messages[0].content", "not a number"),
        (True, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content", "text"),
        (True, {"max_tokens": 0}, "max_tokens", ">= 1"),
        (True, {"max_tokens": "5"}, "max_tokens", "must be an integer, not a string"),
        (True, {"max_tokens": 1.5}, "max_tokens", "not 1.5"),
        (True, {"max_tokens": True}, "max_tokens", "not a boolean"),
        (True, {"max_completion_tokens": -1}, "max_completion_tokens", ">= 1"),
        (True, {"max_tokens": 5, "min_tokens": 6}, "min_tokens", "<= max_tokens (5)"),
        (True, {"n": 2}, "n", "must be 1"),
        (True, {"stream": 1}, "stream", "must be a boolean"),
        (True, {"ignore_eos": "yes"}, "ignore_eos", "must be a boolean"),
        (True, {"stream_options": {"include_usage": True}}, "stream_options", "only allowed when stream"),
        (True, {"stream": True, "stream_options": 1}, "stream_options", "must be an object"),
        (True, {"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage", "boolean"),
        (False, {"prompt": None}, "prompt", "non-empty"),
        (False, {"prompt": []}, "prompt", "non-empty"),
        (False, {"prompt": ["a", "b"]}, "prompt", "one prompt per request"),
        (False, {"prompt": [1, 2.5]}, "prompt", "token ids"),
    ],
)
def test_what_is_wrong_is_named(chat, change, param, words):
    with pytest.raises(ApiError) as caught:
        parse((CHAT if chat else TEXT) | change, chat=chat)
    body = json.loads(caught.value.body())["error"]
    assert (caught.value.status, body["code"], body["param"], body["type"]) == (400, 400, param, "BadRequestError")
    assert words in body["message"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"\xff"])
def test_a_body_that_is_no_object_is_refused(body):
    with pytest.raises(ApiError, match="body") as caught:
        parse_generation(body, chat=True)
    assert caught.value.status == 400


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("tokens", [1, 3, 255, 256, 1000])
def test_a_chunk_carries_as_many_words_as_tokens(chat, tokens):
    generation = parse((CHAT if chat else TEXT) | {"stream": True}, chat=chat)
    answer = Answer(generation, 7, 1700000000)
    chunk = answer.content(answer.prefix(), tokens)
    assert chunk.startswith(b"data: ")
    assert chunk.endswith(b"\n\n")
    choice = json.loads(chunk[6:])["choices"][0]
    text = choice["delta"]["content"] if chat else choice["text"]
    assert len(text.split()) == tokens
    assert choice["finish_reason"] is None
