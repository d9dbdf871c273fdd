"""The OpenAI API's wire format: reading requests, writing responses, stream chunks and errors.

Pure: bytes in, values out and back.

**How tokens are counted.** A prompt given as a list of token ids counts exactly. Text counts one token per
whitespace-separated word (at least one); a chat counts the words of all its messages. Every generated token is one
word, so a completion sent back as part of a prompt counts what it did when it was generated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson
import xxhash

_WORD: Final = "tok "
_WORDS: Final = tuple((_WORD * count).encode() for count in range(256))
DONE: Final = b"data: [DONE]\n\n"


class ApiError(Exception):
    """A request that is answered with an error in OpenAI's format. ``param`` names the field at fault, if one is."""

    def __init__(self, status: int, kind: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param

    def body(self) -> bytes:
        """The response body."""
        error = {"message": str(self), "type": self.kind, "param": self.param, "code": self.status}
        return orjson.dumps({"error": error})


@dataclass(frozen=True, slots=True)
class Generation:
    """What a client asks for. ``max_tokens`` ``None`` means as much as fits the context."""

    chat: bool
    model: str
    prompt_tokens: int
    max_tokens: int | None
    min_tokens: int
    ignore_eos: bool
    stream: bool
    include_usage: bool
    prefix: tuple[int, ...] = ()


def parse_generation(body: bytes, *, chat: bool, segment: int = 0) -> Generation:
    """Read the body of ``/v1/chat/completions`` (``chat``) or ``/v1/completions``.

    With ``segment`` its ``prefix`` names the prompt's segments of so many tokens, each with all before it.

    Fields that do not matter to a simulation (temperature, stop ...) are accepted and ignored. Raises ``ApiError``.
    """
    data = _parsed(body)
    if not isinstance(data, dict):
        raise _bad(f"the request body must be a JSON object, not {_kind(data)}", None)
    model = data.get("model")
    if not isinstance(model, str):
        raise _bad(f"model must be a string, not {_kind(model)}", "model")
    if _integer(data, "n", minimum=1, default=1) != 1:
        raise _bad("n must be 1: this engine generates one choice per request", "n")
    max_tokens = _integer(data, "max_tokens", minimum=1)
    prompt: Sequence[str | int]
    if chat:
        prompt = _words_of_messages(data.get("messages"))
        max_tokens = _integer(data, "max_completion_tokens", minimum=1, default=max_tokens)
    else:
        prompt = _words_of_prompt(data.get("prompt"))
        if max_tokens is None:
            max_tokens = 16
    min_tokens = _integer(data, "min_tokens", minimum=0, default=0) or 0
    if max_tokens is not None and min_tokens > max_tokens:
        raise _bad(f"min_tokens must be <= max_tokens ({max_tokens}), not {min_tokens}", "min_tokens")
    stream = _boolean(data, "stream")
    options = data.get("stream_options")
    if options is not None:
        if not isinstance(options, dict):
            raise _bad(f"stream_options must be an object, not {_kind(options)}", "stream_options")
        if not stream:
            raise _bad("stream_options is only allowed when stream is true", "stream_options")
    return Generation(
        chat=chat,
        model=model,
        prompt_tokens=max(1, len(prompt)),
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        ignore_eos=_boolean(data, "ignore_eos"),
        stream=stream,
        include_usage=_boolean(options or {}, "include_usage", "stream_options.include_usage"),
        prefix=_names(prompt, segment),
    )


def _names(prompt: Sequence[str | int], segment: int) -> tuple[int, ...]:
    names, name = [], 0
    for start in range(0, len(prompt) - segment + 1, segment) if segment else ():
        name = xxhash.xxh64_intdigest(f"{name} {prompt[start : start + segment]}")
        names.append(name)
    return tuple(names)


def parse_adapter(body: bytes, *names: str) -> tuple[str, ...]:
    """The named texts of a request about a LoRA adapter. Raises ``ApiError``."""
    data = _parsed(body)
    given = [data.get(name) if isinstance(data, dict) else None for name in names]
    found = tuple(text for text in given if isinstance(text, str) and text)
    if len(found) < len(names):
        raise ApiError(400, "InvalidUserInput", f"{' and '.join(names)} must be provided.")
    return found


def models_body(names: tuple[str, ...], adapters: Mapping[str, str], created: int, max_model_len: int) -> bytes:
    """The body of ``/v1/models``; ``adapters`` are folders by name."""
    cards = [
        {
            "id": name,
            "object": "model",
            "created": created,
            "owned_by": "modelyard",
            "root": names[0],
            "parent": None,
            "max_model_len": max_model_len,
        }
        for name in names
    ]
    cards += [{**cards[0], "id": name, "root": path, "parent": names[0]} for name, path in adapters.items()]
    return orjson.dumps({"object": "list", "data": cards})


class Answer:
    """Writes one request's response, whole or as a stream of server-sent events.

    A stream is: content chunks (each may carry several tokens), a chunk with ``finish_reason``, then, if asked for, one
    with empty ``choices`` and ``usage``, then ``[DONE]``.
    """

    __slots__ = ("_generation", "_head", "_suffix")

    def __init__(self, generation: Generation, number: int, created: int) -> None:
        self._generation = generation
        chat = generation.chat
        self._head: dict[str, Any] = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{number}",
            "object": "chat.completion.chunk" if chat else "text_completion",
            "created": created,
            "model": generation.model,
        }
        self._suffix = (b'"}' if chat else b'"') + b',"logprobs":null,"finish_reason":null}]}\n\n'

    def prefix(self) -> bytes:
        """The bytes with which each of this stream's content chunks begins; pass them to ``content``."""
        opening = b'"delta":{"content":"' if self._generation.chat else b'"text":"'
        return b"data: " + orjson.dumps(self._head)[:-1] + b',"choices":[{"index":0,' + opening

    def content(self, prefix: bytes, tokens: int) -> bytes:
        """A chunk of ``tokens`` generated tokens."""
        words = _WORDS[tokens] if tokens < len(_WORDS) else (_WORD * tokens).encode()
        return prefix + words + self._suffix

    def end(self, reason: str, output_tokens: int) -> bytes:
        """Everything after the last content chunk."""
        choice: dict[str, Any] = {"index": 0, "delta": {}} if self._generation.chat else {"index": 0, "text": ""}
        choice |= {"logprobs": None, "finish_reason": reason}
        parts = [b"data: ", orjson.dumps(self._head | {"choices": [choice]}), b"\n\n"]
        if self._generation.include_usage:
            usage = orjson.dumps(self._head | {"choices": [], "usage": self._usage(output_tokens)})
            parts += [b"data: ", usage, b"\n\n"]
        return b"".join((*parts, DONE))

    def whole(self, reason: str, output_tokens: int) -> bytes:
        """The body of a response that is not streamed."""
        text = _WORD * output_tokens
        choice: dict[str, Any] = {"index": 0}
        if self._generation.chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        choice |= {"logprobs": None, "finish_reason": reason}
        head = self._head | ({"object": "chat.completion"} if self._generation.chat else {})
        return orjson.dumps(head | {"choices": [choice], "usage": self._usage(output_tokens)})

    def _usage(self, output_tokens: int) -> dict[str, int]:
        prompt_tokens = self._generation.prompt_tokens
        return {
            "prompt_tokens": prompt_tokens,
            "total_tokens": prompt_tokens + output_tokens,
            "completion_tokens": output_tokens,
        }


def _parsed(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise _bad(f"the request body is not valid JSON: {error}", None) from None


def _bad(message: str, param: str | None) -> ApiError:
    return ApiError(400, "BadRequestError", message, param)


def _kind(value: object) -> str:
    names = {type(None): "null or missing", bool: "a boolean", str: "a string", list: "an array", dict: "an object"}
    return names.get(type(value), "a number")


def _integer(data: dict[str, Any], name: str, *, minimum: int, default: int | None = None) -> int | None:
    value = data.get(name)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool):
        shown = value if isinstance(value, float) else _kind(value)
        raise _bad(f"{name} must be an integer, not {shown}", name)
    if value < minimum:
        raise _bad(f"{name} must be >= {minimum}, not {value}", name)
    return value


def _boolean(data: dict[str, Any], name: str, path: str | None = None) -> bool:
    value = data.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise _bad(f"{path or name} must be a boolean, not {_kind(value)}", path or name)
    return value


def _words_of_messages(messages: object) -> list[str]:
    if not isinstance(messages, list) or not messages:
        raise _bad(f"messages must be a non-empty array, not {_kind(messages)}", "messages")
    words: list[str] = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if not isinstance(message, dict):
            raise _bad(f"{where} must be an object, not {_kind(message)}", where)
        if not isinstance(message.get("role"), str):
            raise _bad(f"{where}.role must be a string, not {_kind(message.get('role'))}", f"{where}.role")
        content = message.get("content")
        if isinstance(content, str):
            words += content.split()
        elif isinstance(content, list):
            for part in content:
                text = part.get("text") if isinstance(part, dict) else None
                if not isinstance(text, str):
                    raise _bad(f"{where}.content must have only parts of type text", f"{where}.content")
                words += text.split()
        elif content is not None:
            raise _bad(f"{where}.content must be a string or an array, not {_kind(content)}", f"{where}.content")
    return words


def _words_of_prompt(prompt: object) -> Sequence[str | int]:
    if isinstance(prompt, str):
        return prompt.split()
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
        return _words_of_prompt(prompt[0])
    if isinstance(prompt, list) and prompt:
        if all(type(token) is int for token in prompt):
            return prompt
        raise _bad(
            "prompt must be one text or one array of token ids: this engine takes one prompt per request", "prompt"
        )
    raise _bad(f"prompt must be a non-empty string or array of token ids, not {_kind(prompt)}", "prompt")
