"""Work and memory for answers whose bytes a pod chooses: bounded for each slice; bytes beyond are charged unseen."""

from __future__ import annotations

from collections.abc import Callable

import orjson
import pytest
from hypothesis import given, strategies as st

from modelyard.routing import usage
from modelyard.routing.usage import SLICE, Relay, Usage, WholeAnswer

SIZE = 32 * SLICE
FLOODS = {
    "newlines": b"\n",
    "carriage returns": b"\r\n",
    "comments": b":\n",
    "empty events": b"data:\n\n",
    "smallest objects": b"data: {}\n\n",
    "names": b"event: ping\n",
    "objects of other streams": b"{}\n",
    "usages that are none": b'data: "usage":{\n',
    "usages": b'data: {"choices":[],"usage":{"completion_tokens":1}}\n\n',
}
LAST = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":9}}\n\n'


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Callable[[], tuple[int, int]]:
    """Returns the lines that were looked at and the JSON values that were read since the last call."""
    counts = [0, 0]
    read, loads = Relay._read, orjson.loads

    def count_line(relay: Relay, line: bytes) -> bool:
        counts[0] += 1
        return read(relay, line)

    def count_value(raw: bytes) -> object:
        counts[1] += 1
        return loads(raw)

    def take() -> tuple[int, int]:
        lines, values = counts
        counts[:] = [0, 0]
        return lines, values

    monkeypatch.setattr(Relay, "_read", count_line)
    monkeypatch.setattr(orjson, "loads", count_value)
    return take


@pytest.mark.parametrize("piece", FLOODS.values(), ids=FLOODS)
@pytest.mark.parametrize("withhold", [False, True])
def test_of_each_slice_of_a_stream_so_many_lines_are_looked_at_and_no_more(
    piece: bytes, withhold: bool, counted: Callable[[], tuple[int, int]]
) -> None:
    relay, flood = Relay(withhold=withhold), piece * (SIZE // len(piece))
    sent = b""
    for start in range(0, len(flood), SLICE):
        sent += relay.feed(flood[start : start + SLICE])
        lines, values = counted()
        assert lines <= usage._MOST_LINES
        assert values <= (1 + usage._MOST_TRIES) * usage._MOST_COUNTS
        assert relay.kept <= len(piece)
    sent += relay.end()
    if piece != FLOODS["usages"] or not withhold:
        assert sent == flood


def test_bytes_that_pass_unseen_are_charged_as_text() -> None:
    relay = Relay(withhold=False)
    relay.feed(b"\n" * SIZE)
    seen = usage._MOST_LINES * (SIZE // SLICE)
    assert relay.counted == Usage(None, (SIZE - seen) // usage.TEXT_BYTES)


@pytest.mark.parametrize("piece", FLOODS.values(), ids=FLOODS)
def test_the_count_behind_a_flood_is_read(piece: bytes) -> None:
    relay = Relay(withhold=True)
    relay.feed(piece * (10 * SLICE // len(piece)))
    relay.feed(b"\n")
    assert relay.feed(LAST) == b"\n"
    assert relay.usage.input == 7


def test_a_slice_at_once_or_byte_by_byte_is_the_same_work(counted: Callable[[], tuple[int, int]]) -> None:
    relay = Relay(withhold=False)
    for _ in range(20_000):
        relay.feed(b"x")
    assert counted() == (0, 0)
    assert relay.kept <= usage._LONGEST_LINE


NEVER_ENDING = {
    "a line": b"data: " + b"x" * (SLICE - 6),
    "an object": b"data: {" + b'"a":[' * (SLICE // 5),
    "usage": b"data: " + b'"usage":{"a":' * (SLICE // 13),
}


@pytest.mark.parametrize("piece", NEVER_ENDING.values(), ids=NEVER_ENDING)
@pytest.mark.parametrize("reader", [Relay(withhold=True), WholeAnswer(usage._LONGEST_LINE)], ids=["stream", "whole"])
def test_of_a_line_or_an_answer_without_end_a_bounded_part_is_kept(
    piece: bytes, reader: Relay | WholeAnswer, counted: Callable[[], tuple[int, int]]
) -> None:
    size = 0
    for _ in range(2 * SIZE // SLICE):
        size += len(reader.feed(piece))
        assert reader.kept <= usage._LONGEST_LINE + 2 * SLICE
        assert counted()[1] <= usage._MOST_TRIES
    reader.feed(b'"usage":{"prompt_tokens":7,"completion_tokens":100000}}\n')
    assert reader.counted == Usage(7, 100_000)
    assert size + reader.kept >= 2 * SIZE - SLICE


@given(st.lists(st.sampled_from([*FLOODS.values(), LAST, b'data: {"a":1}\n', b"x" * 5000]), max_size=6),
       st.integers(1, 3000), st.integers(1, 20_000))  # fmt: skip
def test_a_stream_passes_unchanged_whatever_is_looked_at(pieces: list[bytes], times: int, cut: int) -> None:
    stream = b"".join(piece * times for piece in pieces)[: 8 * SLICE]
    relay = Relay(withhold=False)
    parts = [relay.feed(stream[start : start + cut]) for start in range(0, len(stream), cut)]
    assert b"".join(parts) + relay.end() == stream
