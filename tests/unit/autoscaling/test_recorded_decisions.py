"""Decisions about random fleets are those on record.

A change that is meant is recorded with ``python tests/support/random_fleets.py 20000``, and justified in its commit.
"""

from __future__ import annotations

import pytest
from random_fleets import digests, recorded

CHUNK = 1000


def assert_as_recorded(seeds: range) -> None:
    before = recorded()
    decided, worded = [], []
    for seed in seeds:
        now = digests(seed)
        if now[0] != before[seed][0]:
            decided.append(seed)
        elif now[1] != before[seed][1]:
            worded.append(seed)
    assert not decided, f"{len(decided)} of {len(seeds)} fleets are decided otherwise: seeds {decided[:10]}"
    assert not worded, f"{len(worded)} of {len(seeds)} decisions have other words: seeds {worded[:10]}"


@pytest.mark.parametrize("begin", range(0, 20_000, 5000))
def test_a_fiftieth_of_the_fleets_is_decided_as_recorded(begin: int) -> None:
    assert_as_recorded(range(begin, begin + 5000, 50))


@pytest.mark.long
@pytest.mark.parametrize("begin", range(0, 20_000, CHUNK))
def test_every_fleet_is_decided_as_recorded(begin: int) -> None:
    assert_as_recorded(range(begin, begin + CHUNK))
