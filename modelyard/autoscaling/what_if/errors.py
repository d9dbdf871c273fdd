"""The one error of what-if questions."""

from __future__ import annotations

from collections.abc import Iterable


class WhatIfError(ValueError):
    """A question that cannot be asked of this fleet. The message names the option, what is wrong and what exists."""

    exit_code = 2


def listed(names: Iterable[str]) -> str:
    """Names for a message, each once and in order."""
    found = sorted(set(names))
    return ", ".join(found) if found else "none"
