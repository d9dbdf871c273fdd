"""Command lines of containers: their words, the script of a shell, and the commands in it. Pure.

Options are added in two forms of command line: a list of words, and a script that a shell runs (``sh -c``). In a script
they belong behind the words of the command that starts the engine, not behind the script.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from modelyard.objects import MAX_ARGUMENTS

MAX_VARIABLE: Final = 1024
"""Characters of a variable that is filled in: an argument may name it thousands of times."""
FIELDS: Final = ("command", "args")
_SHELLS: Final = frozenset(("sh", "bash", "dash", "ash", "zsh"))
_VARIABLE: Final = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)")
_SEPARATORS: Final = frozenset(";&|\n()<>")


def words(container: Mapping[str, Any]) -> list[str]:
    """Return the words of a container's command line, with the variables that have a value in its ``env`` filled in.

    Texts with blanks are split as a shell does, JSON apart. The result is empty for a command line that is too long.
    """
    given = literals(container)
    line = [str(word) for field in FIELDS for word in container.get(field) or ()]
    if sum(map(len, line)) > MAX_ARGUMENTS:
        return []
    result: list[str] = []
    for part in line:
        result += split(part) if re.search(r"\s", part) and not part.startswith("{") else [part]
    return [_VARIABLE.sub(lambda match: given.get(match[1], match[0]), word) for word in result]


def literals(container: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables of a container whose value is written in ``env``, cut to a length that may be repeated."""
    variables = (variable for variable in container.get("env") or () if "valueFrom" not in variable)
    return {variable["name"]: str(variable.get("value") or "")[:MAX_VARIABLE] for variable in variables}


def split(text: str) -> list[str]:
    """Split as a shell does; a text with an open quotation is one word."""
    try:
        return shlex.split(text)
    except ValueError:
        return [text]


class Script(NamedTuple):
    """A script that a shell runs: the field of the container it is in, and its place there."""

    field: str
    place: int
    text: str

    def replaced(self, container: Mapping[str, Any], text: str) -> dict[str, Any]:
        parts = list(container[self.field])
        parts[self.place] = text
        return {**container, self.field: parts}


def script(container: Mapping[str, Any]) -> Script | None:
    """Return the script of a container whose command line is a shell with ``-c``."""
    parts = [(field, i, str(word)) for field in FIELDS for i, word in enumerate(container.get(field) or ())]
    for start, (_, _, word) in enumerate(parts):
        if posixpath.basename(word) not in _SHELLS:
            continue
        for place in range(start + 1, len(parts)):
            option = parts[place][2]
            if not option.startswith("-"):
                break
            if not option.startswith("--") and option.endswith("c") and place + 1 < len(parts):
                return Script(*parts[place + 1])
    return None


class Command(NamedTuple):
    """A simple command of a script: where its words begin and end in the text."""

    start: int
    end: int
    words: tuple[str, ...]


def commands(text: str) -> Iterator[Command]:
    """Yield the simple commands of a script. Raises ``ValueError`` for a quotation or substitution that stays open."""
    start = place = 0
    while place < len(text):
        character = text[place]
        if character == "#" and (place == 0 or text[place - 1].isspace()):
            yield from _command(text, start, place)
            place = start = text.find("\n", place) + 1 or len(text)
        elif character in _SEPARATORS:
            end = place
            if character in "<>":  # The number of a stream belongs to the redirection.
                digits = len(text[start:place]) - len(text[start:place].rstrip("0123456789"))
                end -= digits if text[start : place - digits][-1:].isspace() else 0
            yield from _command(text, start, end)
            place = start = place + 1
        else:
            place = _skipped(text, place)
    yield from _command(text, start, len(text))


def _command(text: str, start: int, end: int) -> Iterator[Command]:
    kept = text[start:end].rstrip()
    while kept.endswith("\\") and text[start + len(kept) : start + len(kept) + 1] == "\n":  # A line that goes on.
        kept = kept[:-1].rstrip()
    if kept:
        yield Command(start, start + len(kept), tuple(shlex.split(kept)))


def _skipped(text: str, place: int) -> int:
    """Return the place behind a character, or behind all that it quotes or begins."""
    if text[place] == "\\":
        return place + 2
    if text[place] == "'":
        return _closed(text, "'", place + 1)
    if text[place] in '"`':
        end = place + 1
        while end < len(text) and text[end] != text[place]:
            end += 2 if text[end] == "\\" else 1
        return _closed(text, text[place], end)
    if text.startswith("${", place):
        return _closed(text, "}", place + 2)
    if text.startswith("$(", place):
        depth, end = 1, place + 2
        while depth and end < len(text):
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        if depth:
            raise ValueError("a substitution is not closed")
        return end
    return place + 1


def _closed(text: str, mark: str, start: int) -> int:
    end = text.find(mark, start)
    if end < 0:
        raise ValueError(f"{mark} is missing")
    return end + 1
