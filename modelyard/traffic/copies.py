"""What the further requests of a trace are when it is replayed at a higher rate."""

from __future__ import annotations

from enum import StrEnum


class Copies(StrEnum):
    """What the further requests are at a rate above 1."""

    INDEPENDENT = "independent"
    """Each has the size of another request within a minute, and comes within 30 seconds of its original."""
    CLUMPED = "clumped"
    """The same request again, within half a second of it."""
