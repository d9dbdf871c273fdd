"""Texts in places that render Markdown, such as Prefect's artifacts: anybody may name an object like a link. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from modelyard.objects.documents import cut, printable

MOST_SHOWN = 500
"""Characters of one text in a table or event. What is cut is whole in the object's status."""
_MARKUP = re.compile(r"[\\`*\[\]<>|~@&]|(?<![^\W_])_|_(?![^\W_])|^[-+#]|^\d{1,9}[.)]|www\.|:(?=//)", re.IGNORECASE)
"""Whatever ends in a character that Markdown would take for more than itself."""


def plain(value: object) -> object:
    """Return a value as an event may carry it: a text on one line, cut."""
    return cut(printable(value), MOST_SHOWN) if isinstance(value, str) else value


def unformatted(text: str) -> str:
    """Return Markdown that shows the text as it is."""
    return _MARKUP.sub(lambda match: f"{match[0][:-1]}\\{match[0][-1]}", text.strip())


def cells(row: Mapping[str, object]) -> dict[str, object]:
    """Return the row as a table may hold it."""
    return {
        name: unformatted(shown) if isinstance(shown := plain(value), str) else shown for name, value in row.items()
    }
