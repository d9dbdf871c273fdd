"""The bodies that pass through a router: what a request asks for, the few edits to it, those for prefill and decode.

Pure. Members that are not edited keep their bytes, so that neither big integers nor the order of keys change.
Source: kthena-routing, 6, 8, 14.6 and 15.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import orjson

from modelyard.routing.errors import ErrorAnswer, malformed
from modelyard.routing.prompt_size import MEDIA_BYTES, TEXT_CHARACTERS, more_characters
from modelyard.routing.token_ids import MOST_KEPT, cut_token_ids

_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'


def _value(depth: int) -> bytes:
    """Return the pattern of a string, list or object of valid JSON, nested at most so deep: one match, not many."""
    inner = _value(depth - 1) if depth else _STRING
    return rb"(?:" + _STRING + rb'|[\[{](?:[^\[\]{}"]++|' + inner + rb")*+[\]}])"


_TOKEN = re.compile(_value(6) + rb"|[\[\]{},:]", re.DOTALL)
_SPACE = b" \t\r\n"
_MOST_NESTED = 100_000
"""Lists and objects in a body, which is read in one piece while all else waits: text is fast, these are not."""
_MOST_VALUES = 1_000_000
"""Commas in a body, so about as many values: a number takes ten times its bytes once it is read."""
_LONGEST_OPTIONS = 1 << 12
"""Bytes of ``stream_options`` as they are kept."""
_EXACT = 1 << 15
"""Bytes of a body up to which members are replaced where they stand: 2 ms where it has as many values as it can."""
_MOST_SEGMENTS = 1000
_MODEL = re.compile(rb'"model"\s*+:\s*+"([^"\\]{1,256}+)"')
_SHOWN = 1 << 12
"""Bytes at the beginning and the end of a long body where its model is looked for: clients put it before the prompt, or
behind it."""


class ModelRequest(NamedTuple):
    """A request's body as sent, and as read. ``span``: where a form names the model; a JSON object has none.
    ``ids_cut``: the token ids that were counted and not read. ``segments``: those of a long body, where they are known.

    The data is many times as large as the bytes: what lasts is ``brief``.
    """

    raw: bytes
    data: Mapping[str, Any]
    model: str
    span: tuple[int, int] | None = None
    ids_cut: int = 0
    segments: Sequence[Segment] | None = None

    @property
    def brief(self) -> ModelRequest:
        """With no more of the data than what is asked of a request while it is under way."""
        kept = {name: value for name in _ASKED_LATER if _small(value := self.data.get(name))}
        return self._replace(data={**dict.fromkeys(name for name in _REMOVED if name in self.data), **kept})


_ASKED_LATER = ("stream", "stream_options", "background", "max_completion_tokens", "min_tokens")
_BOOLEANS = ("stream", "background")
"""Members that decide how tokens are counted. Engines take 1, "1", "on" and more for true."""
_REMOVED = ("stream", "stream_options", "n", "best_of", "background", "min_tokens", "kv_transfer_params")
"""Members that calls for prefill and decode lack: their presence is remembered."""


def _small(value: Any) -> bool:
    return isinstance(value, bool) or (value is not None and 0 < len(_json(value)) <= _LONGEST_OPTIONS)


def _not_boolean(name: str, value: Any) -> ErrorAnswer:
    return malformed(f"{name} is {_json(value)[:64] or 'no boolean'}; send true or false", name)


def _json(value: Any) -> str:
    """Return JSON for a value; none for one that is nested deeper than can be written."""
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:
        return ""


def read(raw: bytes) -> ModelRequest | ErrorAnswer:
    """A body that names a model, or the answer to one that does not."""
    # A shorter body cannot have as many.
    if len(raw) > _MOST_VALUES and raw.count(b",") > _MOST_VALUES:
        return malformed(f"invalid request body: more than {_MOST_VALUES} commas")
    if len(raw) > _MOST_NESTED and raw.count(b"[") + raw.count(b"{") > _MOST_NESTED:
        return malformed(f"invalid request body: more than {_MOST_NESTED} lists and objects")
    parsed, ids = cut_token_ids(raw) if len(raw) > MOST_KEPT else (raw, 0)
    try:
        data = orjson.loads(parsed)
    except (orjson.JSONDecodeError, RecursionError):
        return malformed("invalid request body: not one JSON value in UTF-8")
    if not isinstance(data, dict):
        return malformed("invalid request body: not a JSON object")
    options = data.get("stream_options")
    if options is not None and not isinstance(options, dict):
        return malformed(
            f"stream_options is {_json(options)[:64] or 'no object'}; send an object or leave it out", "stream_options"
        )
    if options is not None and not _small(options):
        return malformed(f"stream_options is longer than {_LONGEST_OPTIONS} bytes", "stream_options")
    flags = [(name, data.get(name)) for name in _BOOLEANS]
    flags.append(("stream_options.include_usage", (options or {}).get("include_usage")))
    for name, value in flags:
        if value is not None and not isinstance(value, bool):
            return _not_boolean(name, value)
    model = data.get("model")
    if not isinstance(model, str) or not model.strip():
        return malformed("model not found in the request body", "model")
    return ModelRequest(raw, data, model, None, ids)


_BOUNDARY = re.compile(r';\s*boundary=(?:"([^"\r\n]{1,70})"|([^\s;"]{1,70}))', re.IGNORECASE)
_NAMED = re.compile(
    rb'^content-disposition:[^\r\n]*;\s*name="(model|stream)"\s*(?:;|\r|$)', re.IGNORECASE | re.MULTILINE
)
_MOST_HEAD = 4096
_MOST_PARTS = 128


def read_form(raw: bytes, content_type: str) -> ModelRequest | ErrorAnswer:
    """A form (``multipart/form-data``) that names a model, or the answer to one that does not. Files are not read."""
    named = _BOUNDARY.search(content_type)
    if named is None:
        return malformed("invalid request body: multipart/form-data without a boundary")
    mark = b"--" + (named[1] or named[2]).encode("latin-1", "replace")
    found: dict[str, tuple[int, int]] = {}
    start = 0 if raw.startswith(mark) else raw.find(b"\r\n" + mark) + 2
    for _ in range(_MOST_PARTS):
        head = start + len(mark) + 2
        if start < 0 or raw[head - 2 : head] != b"\r\n":
            break
        begin, end = raw.find(b"\r\n\r\n", head, head + _MOST_HEAD), raw.find(b"\r\n" + mark, head)
        if begin < 0 or end < begin:
            return malformed("invalid request body: a part of the form does not end, or has too long a head")
        if field := _NAMED.search(raw[head : begin + 2]):
            if field[1].decode() in found:
                return malformed("invalid request body: the form names its model more than once", "model")
            found[field[1].decode()] = (begin + 4, end)
        start = end + 2
    if "model" not in found:
        return malformed("model not found in the request body", "model")
    span = found["model"]
    try:
        model = raw[slice(*span)].decode()
    except UnicodeDecodeError:
        return malformed("model is not UTF-8", "model")
    if not model.strip():
        return malformed("model not found in the request body", "model")
    stream = raw[slice(*found.get("stream", (0, 0)))].strip().lower()
    if stream not in (b"", b"true", b"false"):
        return _not_boolean("stream", stream.decode("utf-8", "replace"))
    return ModelRequest(raw, {"model": model, "stream": stream == b"true"}, model, span, -(-len(raw) // MEDIA_BYTES))


def with_changes(request: ModelRequest, changes: Mapping[str, Any]) -> bytes:
    """The body with members set or removed; the very bytes that came where there is nothing to change."""
    if request.span is None:
        absent = {name for name, value in changes.items() if value is None and name not in request.data}
        present = {name: value for name, value in changes.items() if name not in absent}
        return edited(request.raw, present, request.segments)
    start, end = request.span
    return (
        request.raw[:start] + str(changes["model"]).encode() + request.raw[end:] if "model" in changes else request.raw
    )


_PARTS = {
    **dict.fromkeys(("text", "input_text", "output_text", "reasoning_text", "summary_text"), "text"),
    "thinking": "thinking",
    "refusal": "refusal",
    "tool_result": "content",
}
"""Types of the parts of a message's content that are text of the prompt, and the member that has it."""
_ITEMS = ("name", "arguments", "input", "output", "summary", "content")
"""Members of an item of ``/v1/responses`` other than a message (tool calls, their results, reasoning) that are text."""
_MOST_NESTED_TEXT = 8


def likely_model(raw: bytes) -> str:
    """Return the model that a body which is not read yet seems to ask for; empty: it does not show."""
    match = _MODEL.search(raw[:_SHOWN]) or _MODEL.search(raw[-_SHOWN:])
    return match[1].decode("utf-8", "replace") if match else ""


class Prompt(NamedTuple):
    """Text of a prompt, and the number of token ids in it. ``head``: the first ids, as text. ``more``: characters that
    become prompt too, such as those of tools."""

    text: str
    ids: int = 0
    head: str = ""
    more: int = 0

    @property
    def hashed(self) -> str:
        """Return the text that prefixes are compared by."""
        return self.head + self.text


def prompt_of(data: Mapping[str, Any]) -> Prompt:
    """The prompt that is counted and hashed; empty where the request has none that can be read. Never refuses.

    ``system`` and ``instructions`` come first, as in the prompts that engines make. A prompt beside messages or input
    counts too: which of them the engine reads is its own affair.
    """
    messages, items = data.get("messages"), data.get("input")
    turns: list[Any] = [{"role": "system", "content": data.get("system")}] if isinstance(messages, list) else []
    turns.append({"role": "developer", "content": data.get("instructions")})
    turns += messages if isinstance(messages, list) else ()
    ids: list[Any] = []
    texts = [_prompt(data.get("prompt"), ids)]
    if isinstance(items, str):
        turns.append({"role": "user", "content": items})
    elif isinstance(items, list) and not any(isinstance(item, dict) for item in items):
        texts.append(_prompt(items, ids))
    elif isinstance(items, list):
        turns += [_turn(item) for item in items]
    head = " ".join(str(token) for token in ids[:MOST_KEPT] if isinstance(token, int))
    text = "".join(texts) + _framed(turns)
    return Prompt(text, len(ids), head, more_characters(data, len(text)))


def _prompt(value: Any, ids: list[Any], depth: int = 0) -> str:
    """Return the text of a prompt; add its token ids to ``ids``. An engine takes 3.0 for 3."""
    if isinstance(value, str):
        return value
    if isinstance(value, int | float):
        ids.append(value)
    if not isinstance(value, list) or depth > _MOST_NESTED_TEXT:
        return ""
    if value and isinstance(value[0], int | float):
        ids += value
        return ""
    texts = [_prompt(part, ids, depth + 1) for part in value]
    return "\n".join([text for text in texts if text])


def _turn(item: Any) -> Any:
    if isinstance(item, str):
        return {"role": "user", "content": item}
    if not isinstance(item, dict) or (item.get("type") or "message") == "message":
        return item
    return {"role": item["type"], "content": _joined([_content(item.get(name)) for name in _ITEMS])}


def _framed(messages: Iterable[Any]) -> str:
    return "".join(
        f"<|im_start|>{message['role']}\n{text}<|im_end|>\n"
        for message in messages
        if isinstance(message, dict) and isinstance(message.get("role"), str) and (text := _text(message)) is not None
    )


def _text(message: Mapping[str, Any]) -> str | None:
    calls, content = message.get("tool_calls"), message.get("content")
    if not calls and isinstance(content, str):
        return content  # as most are
    functions = [call.get("function") for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    return _joined([_content(content), *map(_call, functions)])


def _content(content: Any, depth: int = 0) -> str | None:
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or depth > _MOST_NESTED_TEXT:
        return None
    return _joined([_part(part, depth) for part in content if isinstance(part, dict)])


def _part(part: Mapping[str, Any], depth: int) -> str | None:
    kind = part.get("type", "text")
    if kind == "tool_use":
        return _call({"name": part.get("name"), "arguments": part.get("input")})
    return _content(part.get(_PARTS[kind]), depth + 1) if isinstance(kind, str) and kind in _PARTS else None


def _call(function: Any) -> str | None:
    if not isinstance(function, dict):
        return None
    given = function.get("arguments")
    arguments = _json(given) if isinstance(given, dict) else given
    return _joined([text if isinstance(text, str) else None for text in (function.get("name"), arguments)])


def _joined(texts: Sequence[str | None]) -> str | None:
    given = [text for text in texts if text is not None]
    return "\n".join(given) if given else None


class BodySummary(NamedTuple):
    """Parts of a request's body that are kept in addition to its bytes. ``head``: the start of its prompt."""

    model: str
    options: Mapping[str, Any]
    head: str
    tokens: int
    span: tuple[int, int] | None = None


def summarize(raw: bytes, content_type: str, most_hashed: int) -> BodySummary | ErrorAnswer:
    """Read a body, JSON or a form: the model it names, its options, and its prompt, of which ``most_hashed``
    characters are kept."""
    request = read_form(raw, content_type) if content_type.startswith("multipart/form-data") else read(raw)
    if isinstance(request, ErrorAnswer):
        return request
    prompt = prompt_of(request.data)
    tokens = estimate(prompt) + request.ids_cut
    return BodySummary(request.model, request.brief.data, prompt.hashed[:most_hashed], tokens, request.span)


def estimate(prompt: Prompt) -> int:
    """Estimate the tokens of a prompt: a quarter of the code points of its text, rounded up, and one for each id."""
    return -(-(len(prompt.text) + prompt.more) // TEXT_CHARACTERS) + prompt.ids


def edited(raw: bytes, changes: Mapping[str, Any], segments: Sequence[Segment] | None = None) -> bytes:
    """The object with members set (or, where the value is ``None``, removed); all others as they were.

    In a long body they are set behind all others instead: of two members with one name the last counts for engines. Its
    ``segments`` are found where they are needed and not given.
    """
    if not changes:
        return raw
    if len(raw) > _EXACT:
        end, view = raw.rindex(b"}"), memoryview(raw)
        members = [
            orjson.dumps(name) + b":" + orjson.dumps(value) for name, value in changes.items() if value is not None
        ]
        if None not in changes.values():
            return b"".join((view[:end], *(b"," + member for member in members), view[end:]))
        removed = {name for name, value in changes.items() if value is None}
        parts = segments or find_segments(raw, removed)
        kept = [view[segment.start : segment.end] for segment in parts if segment.name not in removed]
        return b"{" + b",".join((*kept, *members)) + view[end:]
    # Of two with one name the last counts, as for engines.
    written = {name: raw[value:end].strip(_SPACE) for name, _, value, end in _members(raw)}
    for name, value in changes.items():
        if value is None:
            written.pop(name, None)
        else:
            written[name] = orjson.dumps(value)
    return b"{" + b",".join(orjson.dumps(name) + b":" + value for name, value in written.items()) + b"}"


class Segment(NamedTuple):
    """Members of a JSON object one after the other, without the comma at the end: one that has a name that calls for
    prefill and decode lack, or (``name`` is empty) those between two of them."""

    name: str
    start: int
    end: int


def find_segments(raw: bytes, names: Container[str] = _REMOVED) -> list[Segment]:
    """Find the segments of a valid JSON object, of members with these names.

    Raises ``ValueError`` where they are too many.
    """
    segments: list[Segment] = []
    for name, start, _, end in _members(raw):
        if name in names:
            segments.append(Segment(name, start, end))
        elif segments and not segments[-1].name:
            segments[-1] = segments[-1]._replace(end=end)
        else:
            segments.append(Segment("", start, end))
        if len(segments) > _MOST_SEGMENTS:
            raise ValueError(f"{name!r} and other options are in the body more than {_MOST_SEGMENTS // 2} times")
    return segments


def _members(raw: bytes) -> Iterator[tuple[str, int, int, int]]:
    """Find the members of a valid JSON object: name, and where it, its value and what is behind that begin."""
    depth, name, start, value = 1, "", 0, 0
    for token in _TOKEN.finditer(raw, raw.index(b"{") + 1):
        mark = token[0]
        if depth == 1 and mark[:1] == b'"' and not value:
            name, start = orjson.loads(mark), token.start()
        elif depth == 1 and mark == b":":
            value = token.end()
        elif mark in (b"{", b"["):
            depth += 1
        elif mark in (b"}", b"]") or (mark == b"," and depth == 1):
            depth -= mark != b","
            if value and (mark == b"," or depth == 0):
                yield name, start, value, token.start()
                value = 0


def usage_request(data: Mapping[str, Any]) -> dict[str, Any]:
    """The edit that makes a stream tell its usage; empty where it does anyway, or the request is no stream."""
    if data.get("stream") is not True:
        return {}
    options = data.get("stream_options")
    options = options if isinstance(options, dict) else {}
    return {} if options.get("include_usage") is True else {"stream_options": {**options, "include_usage": True}}


class Connector(StrEnum):
    """How the KV cache of a prompt gets from the prefill to the decode pod."""

    STORE = "http"
    """Through a store, or by the engines themselves: the two calls say nothing of each other."""
    NIXL = "nixl"
    """The prefill call answers with parameters for the decode call."""
    BOOTSTRAP = "sglang"
    """Both calls at the same time, which meet in a room with a number."""

    @classmethod
    def of(cls, engine: str, configured: str) -> Connector:
        """The connector for an engine and ``kvConnector.type`` (empty: not set). Source: 15.2."""
        if configured in ("nixl", "mooncake"):
            return cls.NIXL
        return cls.BOOTSTRAP if engine == "SGLang" and not configured else cls.STORE


RESPONSES = "/v1/responses"


def prefill_changes(data: Mapping[str, Any], connector: Connector, room: int = 0, path: str = "") -> dict[str, Any]:
    """The edits that turn a request on ``path`` into its prefill call, which generates one token and is no stream.

    ``room``: a number below 2**63, new for each attempt.
    """
    changes: dict[str, Any] = dict.fromkeys(("stream", "stream_options", "n", "best_of"))
    if path == RESPONSES:
        # In the background the call would return before the prompt is computed; its answer is not used.
        changes |= {"max_output_tokens": 1, "background": None, "store": False}
    else:
        changes["max_tokens"] = 1
    if data.get("max_completion_tokens") is not None:
        changes["max_completion_tokens"] = 1
    least = data.get("min_tokens")
    if least is not None:
        changes["min_tokens"] = min(least, 1) if isinstance(least, int) else None
    if connector is Connector.NIXL:
        away = dict.fromkeys(("remote_engine_id", "remote_block_ids", "remote_host", "remote_port"))
        changes["kv_transfer_params"] = {"do_remote_decode": True, "do_remote_prefill": False, **away}
    elif connector is Connector.BOOTSTRAP:
        changes["bootstrap_room"] = room
    return changes


def decode_changes(
    data: Mapping[str, Any], connector: Connector, prefilled: Any = None, room: int = 0, host: str = ""
) -> dict[str, Any]:
    """The edits for the decode call, after a prefill call that answered ``prefilled`` or that runs on ``host``.

    Without parameters in the answer none are sent, and the decode pod computes the prompt anew.
    """
    changes = usage_request(data)
    if connector is Connector.NIXL:
        changes["kv_transfer_params"] = prefilled.get("kv_transfer_params") if isinstance(prefilled, dict) else None
    elif connector is Connector.BOOTSTRAP:
        changes |= {"bootstrap_room": room, "bootstrap_host": host}
    return changes
