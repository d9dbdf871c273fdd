"""Kubernetes label selectors, as text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

Matcher = Callable[[Mapping[str, str]], bool]

_SET = re.compile(r"^(?P<key>[^\s=!,()]+)\s+(?P<op>in|notin)\s*\((?P<values>[^()]*)\)$")
_EQUAL = re.compile(r"^(?P<key>[^\s=!,()]+)\s*(?P<op>==|=|!=)\s*(?P<value>[^\s=!,()]*)$")
_EXISTS = re.compile(r"^(?P<no>!?)\s*(?P<key>[^\s=!,()]+)$")


def parse_selector(text: str) -> Matcher:
    """A predicate over labels; empty matches everything. ``ValueError`` names the term that is none."""
    terms = [_term(term.strip()) for term in re.split(r",(?![^(]*\))", text) if term.strip()]
    return lambda labels: all(term(labels) for term in terms)


def _term(text: str) -> Matcher:
    if match := _SET.match(text):
        key, values = match["key"], {value.strip() for value in match["values"].split(",")}
        if match["op"] == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: labels.get(key) not in values
    if match := _EQUAL.match(text):
        key, value = match["key"], match["value"]
        if match["op"] == "!=":
            return lambda labels: labels.get(key) != value
        return lambda labels: labels.get(key) == value
    if match := _EXISTS.match(text):
        key, absent = match["key"], bool(match["no"])
        return lambda labels: (key in labels) is not absent
    raise ValueError(f"{text!r} is not a label selector term")
