"""A steady load of equal requests: what is asked for arrives, and replicas share it."""

from __future__ import annotations

import numpy as np
import pytest

from modelyard.engine.config import EngineConfig
from modelyard.replay.backtest.steady import steady, steady_load

ENGINE = EngineConfig(alpha=20, beta=0.5, gamma=10, delta=0.1, max_num_seqs=8, kv_cache_tokens=20_000)


def test_the_load_is_what_was_asked_for() -> None:
    trace = steady_load(5, 100, 20, 600)
    assert trace.rate == pytest.approx(5, rel=0.1)
    assert set(trace.prompt) == {100}
    assert set(trace.output) == {20}
    assert len(steady_load(1e-9, 1, 1, 10)) == 1, "of nothing nothing can be said"


def test_an_idle_engine_is_as_fast_as_it_is_and_more_replicas_hold_more() -> None:
    idle = steady(ENGINE, 1, steady_load(0.05, 100, 20, 4000))
    assert idle.answered.all()
    assert 1000 * np.nanmean(idle.itl) == pytest.approx(20.5, rel=0.05)
    busy = steady_load(12, 100, 20, 120)
    one, three = (float(steady(ENGINE, replicas, busy).ttft.mean()) for replicas in (1, 3))
    assert three < one
