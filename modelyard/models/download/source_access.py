"""Requests to a source with patience and time limits, and the proof that a model may read what others have fetched.

Rights are per object in buckets, and a gated repository may be listed by anyone. So a copy is shared only when the
source has sent this model, with its own credentials, one byte of every file of it in the listed state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from modelyard.models.download.pace import Pace, WatchedThreads, one_by_one
from modelyard.models.sources import Listing, ModelSource, RangesIgnored, SourceFile
from modelyard.models.storage import FetchError, time_limit, unavailable

T = TypeVar("T")


def list_files(pace: Pace, source: ModelSource) -> Listing:
    """List a source within the time limit of a listing. FetchError."""
    listings: list[Listing] = []
    with pace.within(pace.limits.listing):
        WatchedThreads(pace, 1, lambda: listings.append(call_patiently(pace, source.list))).run()
    return listings[0]


def prove_access(pace: Pace, source: ModelSource, files: Sequence[SourceFile]) -> None:
    """Read one byte of each file that has any, several at a time. FetchError for the first that the source refuses."""
    wanted = [file for file in files if file.size]  # an empty one has nothing that the listing did not show
    prove = one_by_one(wanted, lambda file: call_patiently(pace, lambda: _read_byte(pace, source, file)))
    limits = pace.limits
    rate = limits.required_rate or limits.minimum_rate
    with pace.within(time_limit(0, len(wanted), rate, limits.window) if rate else float("inf")):
        WatchedThreads(pace, min(limits.parallel, len(wanted)), prove).run()


def call_patiently(pace: Pace, call: Callable[[], T]) -> T:
    """Call until it succeeds, with pauses, as the pace allows. FetchError."""
    attempt = 0
    while True:
        try:
            pace.begin()
            answer = call()
            pace.took(0)
            return answer
        except FetchError as error:
            attempt += 1
            pace.retry(error, attempt)


def _read_byte(pace: Pace, source: ModelSource, file: SourceFile) -> None:
    size = 0
    # A server that sends the whole file instead lets it be read, too.
    with suppress(RangesIgnored):
        for chunk in pace.watch(source.read(file, 0, 1)):
            size += len(chunk)
        if size != 1:
            raise unavailable(f"{file.name}: no byte arrived")
    pace.answered(1)
