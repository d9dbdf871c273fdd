"""The parts of a request that become prompt beyond the text of its turns: tools, schemas, documents, images, sounds.

A router does not know the chat template of a model, so every member of a body counts unless it is known to be no part
of the prompt: a member that nobody has heard of is charged rather than free. What the engine counts replaces the
estimate once it has answered. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

TEXT_CHARACTERS = 4
"""Characters of one token, about."""
MEDIA_TOKENS = 1024
"""Tokens of an image, a sound or a video, about; more where it has more KiB."""
MEDIA_BYTES = 1 << 10
"""Bytes of a file, as sent, for one token."""
_TURNS = ("prompt", "messages", "input", "system", "instructions")
"""Members whose text is read turn by turn."""
_NOT_PROMPT = frozenset(
    {
        *("model", "user", "metadata", "store", "include", "background", "service_tier", "truncation", "reasoning"),
        *("stream", "stream_options", "stop", "stop_token_ids", "allowed_token_ids", "bad_words", "logit_bias"),
        *("request_id", "cache_salt", "prompt_cache_key", "safety_identifier", "previous_response_id", "conversation"),
        *(
            "kv_transfer_params",
            "bootstrap_host",
            "bootstrap_room",
            "encoding_format",
            "reasoning_effort",
            "modalities",
        ),
        *(
            "tool_choice",
            "response_id",
            "lora_path",
            "mm_processor_kwargs",
            "vllm_xargs",
            "priority",
            "quality",
            "size",
        ),
    }
)
"""Members that say how to answer, or for whom."""
_MEDIA_MEMBERS = frozenset({"image", "images", "image_data", "audio", "audio_data", "video", "video_data", "mask"}) | {
    "prompt_embeds"
}
_MEDIA_PARTS = frozenset(
    {
        *("image", "image_url", "input_image", "image_embeds", "image_pil", "computer_screenshot"),
        *("audio", "audio_url", "input_audio", "audio_embeds", "video", "video_url", "input_video"),
    }
)
"""Types of the parts of a content that are no text; the members by which a part without a type is known."""
_PAIRS = (("query", "documents"), ("queries", "documents"), ("text_1", "text_2"), ("data_1", "data_2"))
"""Members of a request for scores: an engine reads the first together with each entry of the second."""
_NOT_TEXT = frozenset({"type", "role", "id", "call_id", "tool_call_id", "tool_use_id", "status", "index", "object"}) | {
    *("cache_control", "detail", "format", "mime_type", "media_type"),
}
"""Members of a turn, or of a part of it, that are no text while they are short."""
_LONGEST_NAME = 128


def more_characters(data: Mapping[str, Any], read: int) -> int:
    """Return the characters of prompt in a body beyond the ``read`` ones of its turns; a token of media counts as four.

    Texts count by their characters, tools and schemas by their JSON.
    """
    characters, turns = 0, 0
    for name, value in data.items():
        if name in _TURNS:
            turns += _messages_size(value) if name == "messages" and isinstance(value, list) else _size(value)
        elif value is None or isinstance(value, bool | int | float) or name in _NOT_PROMPT:
            continue
        elif name in _MEDIA_MEMBERS:
            characters += _media(value)
        elif isinstance(value, str) or (isinstance(value, list) and all(isinstance(text, str) for text in value)):
            characters += _size(value)
        elif isinstance(value, list) and isinstance(value[0], int | float):
            continue  # engines take token ids where prompts are, and count them there
        else:
            characters += _json_size(value)
    for first, second in _PAIRS:
        pair, entries = data.get(first), data.get(second)
        if isinstance(pair, str) and isinstance(entries, list):
            characters += len(pair) * max(0, len(entries) - 1)
    return characters + max(0, turns - read)


def _messages_size(messages: list[Any]) -> int:
    """Return the characters of messages. Other values among them are no messages to any engine."""
    size, rest = 0, []
    for message in messages:
        if not isinstance(message, dict):
            continue
        if len(message) == 2 and "role" in message and isinstance(content := message.get("content"), str):
            size += len(content)
        else:
            rest.append(message)
    return size + _size(rest)


def _size(value: Any) -> int:
    """Return the characters of all texts within a value; four for each number of an object."""
    size, rest = 0, [value]
    while rest:
        value = rest.pop()
        if isinstance(value, str):
            size += len(value)
        elif isinstance(value, list):
            rest += () if value and isinstance(value[0], int | float) else value
        elif isinstance(value, dict):
            if _is_media(value):
                size += _media(value)
                continue
            for name, member in value.items():
                size += len(name) if len(name) > _LONGEST_NAME else 0
                if isinstance(member, str):
                    is_text = name not in _NOT_TEXT or len(member) > _LONGEST_NAME
                    size += len(member) if is_text and name != "signature" else 0
                elif name in _NOT_TEXT:
                    continue
                elif isinstance(member, bool | int | float):
                    size += TEXT_CHARACTERS
                elif isinstance(member, list) and member and isinstance(member[0], int | float):
                    size += TEXT_CHARACTERS * len(member)
                else:
                    rest.append(member)
    return size


def _is_media(part: Mapping[str, Any]) -> bool:
    kind = part.get("type")
    if kind is None:
        return not _MEDIA_PARTS.isdisjoint(part) and "role" not in part
    return isinstance(kind, str) and kind in _MEDIA_PARTS and len(part) > 1


def _media(value: Any) -> int:
    entries = value if isinstance(value, list) else [value]
    tokens = sum(max(MEDIA_TOKENS, -(-_json_size(entry) // MEDIA_BYTES)) for entry in entries)
    return TEXT_CHARACTERS * tokens


def _json_size(value: Any) -> int:
    try:
        return len(orjson.dumps(value))
    except orjson.JSONEncodeError:  # nested deeper than it writes, though not deeper than it reads
        return _size(value)
