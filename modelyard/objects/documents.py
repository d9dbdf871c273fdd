"""Text from outside, with limits: documents that anybody may write, and what of it may stand in a message. Pure.

A tenant's ConfigMap or annotation is read by a process that all tenants share. Nothing of it may cost more than its
length, and nothing but ``DocumentError`` comes out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from pydantic import ValidationError

MAX_TEXT = 64 * 1024
"""Characters of one document."""
MAX_DEPTH = 16
MAX_VALUES = 5000
"""Values of one document, keys among them."""
SHOWN = 120
"""Characters of a value that a message shows."""

_TIMESTAMP = "tag:yaml.org,2002:timestamp"
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class DocumentError(ValueError):
    """A document that cannot be used. The message says why, after the name of the place."""


class PlainLoader(yaml.CSafeLoader):
    """Plain values only. A time without quotes stays text, as in Kubernetes."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def _whole(loader: PlainLoader, node: yaml.ScalarNode) -> int:
    value: int = loader.construct_yaml_int(node)
    if not -(2**63) <= value < 2**63:
        raise DocumentError("has a whole number beyond 64 bits")
    return value


PlainLoader.add_constructor("tag:yaml.org,2002:int", _whole)


def parse_document(text: str) -> Any:
    """Parse YAML or JSON; ``None`` if empty. ``DocumentError``, also for aliases, anchors, tags (much of little)."""
    if len(text) > MAX_TEXT:
        raise DocumentError(f"is longer than {MAX_TEXT} characters")
    try:
        _check(text)
        return yaml.load(text, PlainLoader)
    except DocumentError:
        raise
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" at line {mark.line + 1}" if mark is not None else ""
        raise DocumentError(f"is not valid YAML{line}: {getattr(error, 'problem', None) or error}") from None
    except Exception as error:  # what looks like a number and is none gives whatever Python says of it
        raise DocumentError(f"is not valid YAML: {shown(str(error))}") from None


def first_fault(error: ValidationError) -> str:
    """Where a document is not as it has to be, and why: of several faults the first."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'document'}: {first['msg']}"


def events(text: str, most: int) -> Iterator[Any]:
    """Yield YAML events before loading, whose recursion in C may end the process. ``DocumentError`` beyond ``most``."""
    depth = 0
    for event in yaml.parse(text, PlainLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > most:
            raise DocumentError(f"is nested more than {most} deep")
        yield event


def check_aliases(text: str, depth: int, most: int) -> None:
    """Raises ``DocumentError`` where a document, with what its aliases stand for, is too deep or has too many values.

    Loading shares what an alias stands for; whoever walks over it afterwards does not.
    """
    known: dict[str, tuple[int, int]] = {}  # values and levels of what an anchor names
    open_: list[tuple[str | None, int, int]] = []
    for event in events(text, depth):
        if isinstance(event, yaml.CollectionStartEvent):
            open_.append((event.anchor, 1, 1))
            continue
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in known:
                raise DocumentError(f"has an alias of nothing, or of what it is itself in: {shown(event.anchor)}")
            values, levels = known[event.anchor]
        elif isinstance(event, yaml.CollectionEndEvent | yaml.ScalarEvent):
            anchor, values, levels = open_.pop() if isinstance(event, yaml.CollectionEndEvent) else (event.anchor, 1, 0)
            if anchor is not None:
                known[anchor] = values, levels
        else:
            continue
        if open_:
            name, before, deep = open_[-1]
            values, levels = before + values, max(deep, levels + 1)
            open_[-1] = name, values, levels
        if values > most:
            raise DocumentError(f"has more than {most} values, with what its aliases stand for")
        if levels > depth:
            raise DocumentError(f"is nested more than {depth} deep, with what its aliases stand for")


def _check(text: str) -> None:
    values = 0
    for event in events(text, MAX_DEPTH):
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise DocumentError("has an alias or anchor (& or *); write the values out, or quote the text")
        if tag := getattr(event, "tag", None):
            raise DocumentError(f"has the tag {shown(tag)}; write plain values")
        values += isinstance(event, yaml.NodeEvent)
        if values > MAX_VALUES:
            raise DocumentError(f"has more than {MAX_VALUES} values")


def mapping(value: object) -> Mapping[str, Any]:
    """The value where it is an object, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def items_of(value: object) -> list[Any]:
    """The value where it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def mappings(value: object) -> list[Mapping[str, Any]]:
    """The objects in a list; none where the value is no list."""
    return [item for item in items_of(value) if isinstance(item, Mapping)]


def shown(value: object) -> str:
    """A value as a message shows it: its literal, cut."""
    return cut(repr(value), SHOWN)


def cut(text: str, most: int) -> str:
    """The text in at most that many characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def few(texts: Sequence[str], most: int = 10) -> list[str]:
    """The first of these texts, and how many more there are."""
    return [*texts[:most], *([f"and {len(texts) - most} more"] if len(texts) > most else [])]


def printable(text: str) -> str:
    """The text on one line: what would move a terminal's cursor, or cannot be encoded, is written as an escape."""
    return _UNPRINTABLE.sub(lambda found: ascii(found[0])[1:-1], text)


def first_of(names: Sequence[str]) -> str:
    """Return the first of these names, and how many more there are, for the name of a run that works on them."""
    return f"{names[0]} and {len(names) - 1} more" if len(names) > 1 else "".join(names)


def counted(number: float, one: str, several: str = "") -> str:
    """So many of something, in words: ``1 replica``, ``2 replicas``; ``several`` where it is not ``one`` and an s."""
    return f"{number:g} {one if number == 1 else several or one + 's'}"


def listed(names: Iterable[str]) -> str:
    """The names as a message shows them, cut."""
    return cut(", ".join(names), 1000)


def amount(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
