"""Documents of tenants: plain values within limits or an error, and messages that stay on their line."""

from __future__ import annotations

import json
import logging

import pytest
from hypothesis import given, strategies as st

from modelyard.objects.documents import (
    MAX_DEPTH,
    MAX_TEXT,
    MAX_VALUES,
    SHOWN,
    DocumentError,
    cut,
    parse_document,
    printable,
    shown,
)

BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{after}: &{after} [{','.join([f'*{before}'] * 9)}]\n" for before, after in zip("abcdefg", "bcdefgh", strict=True)
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("kv: 0.9\nname: x", {"kv": 0.9, "name": "x"}),
        ('{"a": ["b", 1, true, null]}', {"a": ["b", 1, True, None]}),
        ("at: 2024-13-45", {"at": "2024-13-45"}),
        ("at: 2024-01-02T03:04:05Z", {"at": "2024-01-02T03:04:05Z"}),
        (f"n: {2**63 - 1}", {"n": 2**63 - 1}),
    ],
)
def test_plain_values(text: str, value: object) -> None:
    assert parse_document(text) == value


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: [", "is not valid YAML at line 2"),
        ("a: b: c", "is not valid YAML at line 1"),
        ("a: !!bool x", "has the tag"),
        ("a: !!python/name:os.system x", "has the tag"),
        ("a: 0x_", "is not valid YAML"),
        ("a: " + "9" * 5000, "is not valid YAML"),
        ("a: " + "9" * 400, "beyond 64 bits"),
        ("[" * 3000, "nested more than"),
        ('{"a":' * 3000, "nested more than"),
        ("- " * 3000, "nested more than"),
        ("? " * 3000, "nested more than"),
        ("a: [" + "1," * MAX_VALUES + "]", "has more than"),
        (BOMB, "alias or anchor"),
        ("a: &x 1", "alias or anchor"),
        ('a: "\\ud800"', "is not valid YAML"),
        ("a: \ud800", "is not valid YAML"),
        ("a: \x00", "is not valid YAML"),
        ("? [a]\n: b", "is not valid YAML"),
        ("x" * (MAX_TEXT + 1), "is longer than"),
    ],
)
def test_what_is_refused(text: str, why: str) -> None:
    with pytest.raises(DocumentError, match=why) as refused:
        parse_document(text)
    assert len(str(refused.value)) < 1000


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@given(
    st.text() | st.text(alphabet="[]{}:,-?&*!|>'\"%@` \n\tabc019.exX_") | st.binary().map(lambda b: b.decode("latin-1"))
)
def test_whatever_is_written_is_a_value_or_a_document_error(text: str) -> None:
    try:
        found = parse_document(text)
    except DocumentError as error:
        str(error).encode()
    else:
        repr(found).encode()


@given(VALUES)
def test_json_is_read_as_it_was_written(value: object) -> None:
    text = json.dumps(value, ensure_ascii=False)
    try:
        assert parse_document(text) == value
    except DocumentError:
        # YAML leaves out a few of the characters that JSON takes as they are.
        assert not text.isprintable() or not text.isascii() or text.count("[") + text.count("{") > MAX_DEPTH


@given(st.text())
def test_messages_stay_on_their_line(text: str) -> None:
    line = printable(f"{text}\n\r\x1b[2J\ud800\u202e")
    assert line.isprintable() or not text.isprintable()
    assert not set(line) & set("\n\r\x1b\ud800\u202e\u2028")
    line.encode()


def test_long_values_are_cut() -> None:
    assert (shown("a" * 1000), len(shown("a" * 1000))) == (f"'{'a' * (SHOWN - 2)}…", SHOWN)
    assert cut("abc", 3) == "abc"
    assert cut("abcd", 3) == "ab…"


def test_what_is_logged_stays_on_its_line(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("modelyard.anything").warning("object %s", "a\n2026-01-01 CRITICAL all is lost\x1b[2J")
    assert caplog.messages == ["object a\\n2026-01-01 CRITICAL all is lost\\x1b[2J"]
