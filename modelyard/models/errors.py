"""What can go wrong between a URI and verified files: a reason for machines, a message with the remedy for people."""

from __future__ import annotations


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


def invalid_uri(uri: str, problem: str, remedy: str) -> FetchError:
    """A URI that says nothing; what is quoted of it is bounded."""
    shown = uri if len(uri) <= 200 else uri[:200] + "…"
    return FetchError("InvalidURI", f"storageUri {shown!r}: {problem}; {remedy}")
