"""What can go wrong between a URI and verified files: a reason for machines, a message with the remedy for people."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from pathlib import Path

_SHORTEST_SECRET = 6
"""Fewest characters of a secret that can be distinguished from other text."""


class FetchError(Exception):
    """Fetching, checking or removing a model's files has failed.

    ``reason`` is a condition's reason (CamelCase, listed in ``modelyard.cli.node``); the message names the thing, what
    is wrong with it and what to do. ``retryable``: trying again later may help without anybody changing anything.
    ``retry_after``: seconds that the source has asked to be left alone.
    """

    def __init__(self, reason: str, message: str, *, retryable: bool = False, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.retryable = retryable
        self.retry_after = retry_after


_REMEDY = "this is a fault of Modelyard: report it with this message"


def unexpected(error: BaseException, hidden: Iterable[str] = (), remedy: str = "") -> FetchError:
    """Return the error for an exception that no part expects: its type, place and text, without the ``hidden`` secrets.

    ``remedy`` is what may help until the fault is corrected. The same input fails in the same way, so only an error of
    the disk or the network may pass by itself. A ``FetchError`` is expected, and returned as it is.
    """
    if isinstance(error, FetchError):
        return error
    text = " ".join(str(error).split())[:500]
    for secret in sorted((value for value in hidden if len(value) >= _SHORTEST_SECRET), key=len, reverse=True):
        text = text.replace(secret, "***")
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    message = "; ".join(filter(None, (f"unexpected {type(error).__name__}{place}: {text}", _REMEDY, remedy)))
    return FetchError("InternalError", message, retryable=isinstance(error, OSError))


def unavailable(message: str, wait: float | None = None) -> FetchError:
    """The error of a source that may answer later; ``wait``: seconds that it has asked to be left alone."""
    return FetchError("SourceUnavailable", message, retryable=True, retry_after=wait)


def invalid_uri(uri: str, problem: str, remedy: str) -> FetchError:
    """A URI that says nothing; what is quoted of it is bounded."""
    shown = uri if len(uri) <= 200 else uri[:200] + "…"
    return FetchError("InvalidURI", f"storageUri {shown!r}: {problem}; {remedy}")
