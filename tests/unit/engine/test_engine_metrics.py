"""Histograms that take many observations at once, and the bucket lists."""

import pytest
from hypothesis import given, strategies as st
from prometheus_client import CollectorRegistry, Histogram as RealHistogram

from modelyard.engine.config import EngineConfig
from modelyard.engine.core import EngineCore
from modelyard.engine.metrics import EngineCollector, buckets, one_two_five
from modelyard.engine.stats import EngineStats, Histogram
from modelyard.metrics.vocabulary.vocabulary import ENGINES

BOUNDS = (0.0, 0.25, 1.0, 7.5)


@given(st.lists(st.tuples(st.sampled_from([*BOUNDS, 0.1, 0.3, 2.0, 99.0]), st.integers(1, 5))))
def test_a_histogram_counts_like_the_client_library(observations):
    ours = Histogram(BOUNDS)
    registry = CollectorRegistry()
    real = RealHistogram("h", "text", buckets=BOUNDS, registry=registry)
    for value, count in observations:
        ours.observe(value, count)
        for _ in range(count):
            real.observe(value)
    for bound, count in ours.cumulative():
        le = "+Inf" if bound == float("inf") else str(bound)
        assert registry.get_sample_value("h_bucket", {"le": le}) == count
    assert registry.get_sample_value("h_count") == ours.count
    assert registry.get_sample_value("h_sum") == pytest.approx(ours.total)


@pytest.mark.parametrize(
    ("limit", "bounds"), [(1, (1,)), (4, (1, 2)), (10, (1, 2, 5, 10)), (300, (1, 2, 5, 10, 20, 50, 100, 200))]
)
def test_one_two_five(limit, bounds):
    assert one_two_five(limit) == bounds


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_bucket_bounds_rise(engine):
    found = buckets(engine, 32_768)
    for name, bounds in found.items():
        assert list(bounds) == sorted(set(bounds)), name
        assert isinstance(getattr(EngineStats(found), name), Histogram)


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_every_label_set_exists_before_the_first_request(engine):
    core = EngineCore(EngineConfig(alpha=0))
    registry = CollectorRegistry()
    registry.register(EngineCollector(core, engine, "m"))

    def label_sets():
        return {(sample.name, tuple(sorted(sample.labels.items()))) for f in registry.collect() for sample in f.samples}

    before = label_sets()
    core.submit(1000, 50)
    cancelled = core.submit(10, 5)
    core.advance(0.02)
    core.cancel(cancelled)
    core.advance(60.0)
    assert label_sets() == before
