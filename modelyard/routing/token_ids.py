"""Lists of token ids in request bodies: counted from their bytes, without a number being read.

A body may hold a million ids in two megabytes. Reading them makes a list of a million numbers, and only their count and
the first few thousand, which prefixes are compared by, decide anything. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator

MOST_KEPT = 1 << 14
"""Bytes of a list that are read: more ids than are ever compared as a prefix."""
_NAMES = (b'"prompt"', b'"input"')
"""Members of a request that hold token ids."""
_MOST_TRIES = 8
"""Places of each name that are looked at: a text may hold it any number of times."""
_SPACE = b" \t\r\n"
_CHARACTERS = b"[]0123456789," + _SPACE


def cut_token_ids(raw: bytes) -> tuple[bytes, int]:
    """Return a JSON body with its long lists of token ids cut, and the number of ids that were cut off.

    A list, or a list of lists, keeps its first ids, as one list. Anything else stays as it is.
    """
    cut, ids, copied = list[bytes](), 0, 0
    for start, end in sorted(_lists(raw)):
        if start < copied:
            continue
        kept = raw[start : start + MOST_KEPT].rpartition(b",")[0].translate(None, b"[]" + _SPACE)
        if kept.startswith(b",") or b",," in kept:  # an empty list, or no JSON
            continue
        cut += (raw[copied:start], b"[", kept, b"]")
        ids += raw.count(b",", start, end) - kept.count(b",")
        copied = end
    return (b"".join((*cut, raw[copied:])), ids) if cut else (raw, 0)


def _lists(raw: bytes) -> Iterator[tuple[int, int]]:
    for name in _NAMES:
        at = 0
        for _ in range(_MOST_TRIES):
            if (at := raw.find(name, at) + len(name)) < len(name):
                break
            if (span := _list_after(raw, at, at - len(name))) is not None:
                yield span


def _list_after(raw: bytes, at: int, name: int) -> tuple[int, int] | None:
    """In valid JSON a name within a text has its quotation marks escaped."""
    if raw[name - 1 : name] == b"\\":
        return None
    between = raw[at : at + 64].lstrip(_SPACE)
    value = between[1:].lstrip(_SPACE)
    if not (between.startswith(b":") and value.startswith(b"[")):
        return None
    start = raw.index(b"[", at)
    # Neither a text nor the end of the body can be within a list of numbers.
    ends = [end for end in (raw.find(b'"', start), raw.find(b"}", start)) if end >= 0]
    end = min(ends, default=len(raw))
    if end - start <= MOST_KEPT:
        return None
    listed = raw[start:end]
    if listed.translate(None, _CHARACTERS):
        return None
    end = start + len(listed.rstrip(_SPACE + b","))
    opened = raw.count(b"[", start, end)
    return (start, end) if raw[end - 1 : end] == b"]" and opened == raw.count(b"]", start, end) else None
