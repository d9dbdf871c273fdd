"""PromQL of a tenant, narrowed to series of its own namespace before it is asked. Pure.

Prometheus parses what it is asked; here it is only told, in one pass over the tokens, which of them select series. What
is not understood is refused, and nothing goes on but the tokens that were: no comment, and no text between them, in
which a parser might find a selector that was not seen here.
"""

from __future__ import annotations

import re
from collections import deque
from functools import lru_cache

from modelyard.metrics.vocabulary.queries import quoted
from modelyard.objects import shown

LABEL = "namespace"
"""By which Prometheus says where it scraped a series."""
MAX_TEXT = 2000
"""Characters of an expression."""

_TOKEN = re.compile(
    r"""(?:\s|\#[^\r\n]*+)*+(
    "(?:[^"\\\n]|\\.)*+" | '(?:[^'\\\n]|\\.)*+' | `[^`]*+`
    | (?: (?:[0-9]+(?:ms|[smhdwy]))++ | 0[xX][0-9a-fA-F_]++ | (?:[0-9][0-9_]*+(?:\.[0-9_]*+)?+|\.[0-9_]++)
          (?:[eE][+-]?[0-9_]++)?+ ) (?![\w.])
    | \[[0-9smhdwy:.\s]*+\]
    | [a-zA-Z_:][a-zA-Z0-9_:]*+
    | [=!]~ | [=!<>]= | [-+*/%^=<>,@(){}]
    | \Z )""",
    re.ASCII | re.VERBOSE,
)
"""A string, a number or duration, a range in brackets, a name, an operator; then the end."""
_OPERATORS = {*"+-*/%^<>", "==", "!=", "<=", ">=", "and", "or", "unless", "atan2"}
_MATCHES = {"=", "!=", "=~", "!~"}
_GROUPING = {"by", "without"}
_MATCHING = {"on", "ignoring", "group_left", "group_right"}
_READ_MORE = {"info"}
"""Functions that read series which the expression does not select."""


@lru_cache(maxsize=4096)
def scoped(text: str, namespace: str) -> str:
    """The expression with the namespace in each of its selectors. Raises ``ValueError``, which says why it is refused.

    Any label may be matched but ``namespace``, which must be the own one where it is written. Not every text that comes
    out is an expression: that is Prometheus' to say.
    """
    if len(text) > MAX_TEXT:
        raise ValueError(f"is longer than {MAX_TEXT} characters")
    return " ".join(_Narrowing(_tokens(text), namespace).tokens())


def _tokens(text: str) -> deque[str]:
    found: deque[str] = deque()
    at = 0
    while (token := _TOKEN.match(text, at)) is not None:
        if not token[1]:
            return found
        found.append(token[1])
        at = token.end()
    raise ValueError(f"cannot be read from {shown(text[at:].strip()[:20])} on")


class _Narrowing:
    def __init__(self, tokens: deque[str], namespace: str) -> None:
        self._left = tokens
        self._own = f"{LABEL}={quoted(namespace)}"
        self._namespace = namespace
        self._done: list[str] = []

    @property
    def _next(self) -> str:
        return self._left[0].lower() if self._left else ""

    def _take(self, *wanted: str) -> str:
        if not self._left:
            raise ValueError("ends where more is expected")
        if wanted and _kind(self._left[0]) not in wanted and self._next not in wanted:
            raise ValueError(f"has {shown(self._left[0])} where it cannot be understood")
        self._done.append(self._left.popleft())
        return self._done[-1].lower()

    def tokens(self) -> list[str]:
        if not self._left:
            raise ValueError("is empty")
        value = True
        while self._left:
            value = self._value() if value else self._operator()
        return self._done

    def _value(self) -> bool:
        """Take what stands where a value does; whether one is still to come."""
        word = self._take("name", "text", "number", "(", ")", "{", "+", "-", ",")
        if word == "{":
            self._matchers()
        if _kind(word) != "name":
            return word in ("(", "+", "-", ",")
        if self._next == "(" and word not in _READ_MORE:
            return True  # a function
        if self._next in _GROUPING:
            self._take()
            self._labels()
            return True
        if word in ("inf", "nan"):
            return False
        if self._next == "(":
            raise ValueError(f"calls {word}(), which reads more than the expression selects")
        if self._next == "{":
            self._take()
            self._matchers()
        else:
            self._done.append(f"{{{self._own}}}")
        return False

    def _operator(self) -> bool:
        """Take what stands after a value; whether another is to come."""
        word = self._take("range", ")", ",", "@", "offset", *_GROUPING, *_OPERATORS)
        if word in ("@", "offset"):
            if self._next in ("+", "-"):
                self._take()
            if self._take("number", "start", "end") in ("start", "end"):
                self._take("(")
                self._take(")")
        elif word in _GROUPING:
            self._labels()
        elif word in _OPERATORS:
            if self._next == "bool":
                self._take()
            while self._next in _MATCHING:
                if self._take() in ("on", "ignoring") or self._next == "(":
                    self._labels()
        return word == "," or word in _OPERATORS

    def _labels(self) -> None:
        self._take("(")
        while self._take("name", "text", ",", ")") != ")":
            pass

    def _matchers(self) -> None:
        self._done.append(self._own)
        while self._next != "}":
            self._done.append(",")
            label = self._take("name", "text")
            if _kind(label) == "name" or self._next in _MATCHES:
                match, value = self._take(*_MATCHES), self._take("text")
                if label.strip("\"'`") == LABEL and (match, value[1:-1]) != ("=", self._namespace):
                    raise ValueError(f"reads beyond its namespace: write {self._own}, or leave it out")
            if self._next != "}":
                self._take(",")
                self._done.pop()
        self._take()


def _kind(token: str) -> str:
    first = token[0]
    if first in "\"'`":
        return "text"
    if first.isdigit() or first == ".":
        return "number"
    if first == "[":
        return "range"
    return "name" if first.isalpha() or first in "_:" else token
