"""Answers of any depth can be parsed, and only what is too deep in them is lost."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given, strategies as st

from modelyard.cluster import nesting
from modelyard.cluster.nesting import KEPT_DEPTH, MAX_DEPTH, parse

VALUES = st.recursive(
    st.integers(-9, 9) | st.text('[]{}",:\\ a\u00e9\n', max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('[]{}"\\', max_size=3), inner, max_size=4),
    max_leaves=40,
)


def nested(levels: int, opening: str = '{"a":', closing: str = "}") -> str:
    return opening * levels + "1" + closing * levels


def cut(value: Any, levels: int) -> Any:
    """The value as ``parse`` is to cut it, by recursion."""
    if not isinstance(value, dict | list):
        return value
    if not levels:
        return 0
    if isinstance(value, list):
        return [cut(item, levels - 1) for item in value]
    return {name: cut(item, levels - 1) for name, item in value.items()}


def depth(value: Any) -> int:
    levels = 0
    while isinstance(value, dict | list):
        value = value["a"] if isinstance(value, dict) else value[0]
        levels += 1
    return levels


@pytest.mark.parametrize("levels", [1, 300, 1024, 1025, 1100, 9000, 700_000])
@pytest.mark.parametrize("brackets", [('{"a":', "}"), ("[", "]"), ('[{"a":', "}]")])
def test_a_value_of_any_depth_is_parsed(levels: int, brackets: tuple[str, str]) -> None:
    text = f'{{"before": "x", "deep": {nested(levels, *brackets)}, "after": ["y"]}}'
    parsed = parse(text.encode())
    assert (parsed["before"], parsed["after"]) == ("x", ["y"])
    written = levels * len(brackets[1])
    assert depth(parsed["deep"]) == (written if written <= 1023 else KEPT_DEPTH - 1)


@given(value=VALUES, kept=st.integers(1, 4), chunk=st.integers(1, 40), spaced=st.booleans(), plain=st.booleans())
def test_what_is_not_too_deep_is_kept_as_it_is(value: Any, kept: int, chunk: int, spaced: bool, plain: bool) -> None:
    text = json.dumps(value, indent=1 if spaced else None, ensure_ascii=plain).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nesting, "KEPT_DEPTH", kept)
        patch.setattr(nesting, "_CHUNK", chunk)
        assert orjson.loads(nesting._without_depths(text)) == cut(value, kept)


@pytest.mark.parametrize("levels", [MAX_DEPTH, MAX_DEPTH + 1])
@pytest.mark.parametrize("neighbour", [1, 9000])
def test_the_same_objects_are_too_deep_whatever_is_next_to_them(levels: int, neighbour: int) -> None:
    item = parse(f'{{"items": [{nested(levels)}, {nested(neighbour)}]}}'.encode())["items"][0]
    assert depth(item) == levels
    if levels <= MAX_DEPTH:
        orjson.dumps(item)
    else:
        with pytest.raises(orjson.JSONEncodeError):
            orjson.dumps(item)


@pytest.mark.parametrize(
    "text", ["", "{", '{"a": ', "<html>", nested(9000)[:-1], nested(9000)[:20_000], '"a', '{"a":1}}']
)
def test_what_is_not_json_is_refused(text: str) -> None:
    with pytest.raises(orjson.JSONDecodeError):
        parse(text.encode())
