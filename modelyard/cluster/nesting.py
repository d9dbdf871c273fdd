"""Parsing of answers that contain deeply nested objects.

The API server accepts 10,000 levels of nesting. orjson reads 1,024 levels, counted from the outside of the answer, and
writes 254. Without ``parse``, one object of one tenant would make the list of its kind unreadable for every tenant.
"""

from __future__ import annotations

from typing import Any

import orjson

MAX_DEPTH = 254
"""Levels of an object that ``orjson.dumps`` writes; an object with more is recognized by that."""

KEPT_DEPTH = 400
"""Levels that are left of an answer with too many to parse. An object in it that loses some still has more than
``MAX_DEPTH``, so that the same objects are too deep whatever their neighbours in the list look like."""

_CHUNK = 1 << 20
_QUOTE, _ZERO = b'"0'
_OPENING, _CLOSING = b"{}"
_CURLY = 0x20
"""The bit by which curly brackets differ from square ones."""


def parse(text: bytes) -> Any:
    """Parse JSON; if too deep for orjson, ``0`` replaces values below ``KEPT_DEPTH``. Raises ``JSONDecodeError``."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return orjson.loads(_without_depths(text))


def _without_depths(text: bytes) -> bytes:
    """Cut the text at ``KEPT_DEPTH``, in time and memory that do not depend on what a tenant puts into it."""
    import numpy as np

    # Of the same length, and every quote in it begins or ends a string.
    unescaped = text.replace(rb"\\", b"__").replace(rb"\"", b"__")
    quoted, depth, kept = 0, 0, []
    for start in range(0, len(text), _CHUNK):
        size = min(_CHUNK, len(text) - start)
        chunk = np.frombuffer(unescaped, np.uint8, size, start)
        quotes = quoted + np.cumsum(chunk == _QUOTE)
        structure = np.where(quotes % 2 == 0, chunk | _CURLY, 0)
        opening, closing = structure == _OPENING, structure == _CLOSING
        depths = depth + np.cumsum(opening.astype(np.int64) - closing)
        first = opening & (depths == KEPT_DEPTH + 1)
        cut = (depths > KEPT_DEPTH) | (closing & (depths == KEPT_DEPTH))
        shown = np.where(first, np.uint8(_ZERO), np.frombuffer(text, np.uint8, size, start))
        kept.append(shown[first | ~cut].tobytes())
        quoted, depth = int(quotes[-1]) % 2, int(depths[-1])
    return b"".join(kept)
