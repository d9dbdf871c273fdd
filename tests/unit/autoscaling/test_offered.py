"""Needs read off queues are bounded by the offered load, where it and the replicas' own rates are known."""

from __future__ import annotations

import dataclasses

import pytest
from builders import NOW, Serving, make_fleet
from hypothesis import given, strategies as st

from modelyard.autoscaling.configuration.settings import FleetSettings
from modelyard.autoscaling.fleet.fleet import Fleet
from modelyard.autoscaling.pipeline.decide import decide
from modelyard.metrics.vocabulary.values import ModelLoad

SETTINGS = FleetSettings(headroom=False, max_step_up=100, max_step_up_factor=10)


def world(
    arrivals: float | None,
    rate: float | None,
    *,
    replicas: int = 3,
    waiting: float = 300,
    starting: int = 0,
    since: float = 3600,
) -> Fleet:
    """Replicas that are full and complete ``rate`` requests per second each; ``starting`` more are not ready yet."""
    all_ = replicas + starting
    made = make_fleet(Serving(load=[(0.9, waiting)] * replicas, current=all_, ready=replicas, desired=all_))
    signals = made.signals
    pods = tuple(dataclasses.replace(pod, completed_rate=rate) for pod in signals.pods)
    key = (made.variants[0].key.namespace, made.variants[0].model_id)
    ready = tuple(
        pod if pod.ready_since is None else dataclasses.replace(pod, ready_since=NOW - since) for pod in made.pods
    )
    signals = dataclasses.replace(signals, pods=pods, loads={} if arrivals is None else {key: ModelLoad(arrivals)})
    return dataclasses.replace(made, pods=ready, signals=signals)


def target(of: Fleet, settings: FleetSettings = SETTINGS) -> int | None:
    return decide(of, settings).records[0].target.replicas


def test_growth_stops_at_what_the_load_needs() -> None:
    # Each completes 4/s, is filled to 0.9 / 1.1 of that: 3.27/s; 300 waiting in 120 s are 2.5/s more, from 3 replicas.
    # 10/s and 7.5/s of backlog are 17.5/s: 6 replicas.
    assert target(world(10, 4)) == 6
    # With what is coming there are enough.
    found = decide(world(10, 4, starting=3), SETTINGS).records[0]
    assert (found.target.replicas, found.why.reason) == (6, "CapacityOnItsWay")


def test_without_backlog_fewer_are_needed() -> None:
    assert target(world(10, 4, waiting=6)) == 4


@pytest.mark.parametrize(
    ("arrivals", "rate", "since"),
    [(None, 4.0, 3600.0), (10.0, None, 3600.0), (10.0, 0.0, 3600.0), (float("nan"), 4.0, 3600.0), (10.0, 4.0, 200.0)],
)
def test_what_is_not_known_bounds_nothing(arrivals: float | None, rate: float | None, since: float) -> None:
    # Pods younger than the window of their rate have not shown yet what they can do. A full queue counts twice the
    # threshold: 3 × 10 requests over the 1.7 that leave trigger and margin free.
    assert target(world(arrivals, rate, since=since)) == 18


def test_short_of_capacity_grows_by_one_even_so() -> None:
    assert target(world(1, 4, waiting=6)) == 4


@given(st.floats(0, 200), st.floats(0, 200), st.floats(0.1, 10))
def test_more_load_never_gets_fewer(less: float, more: float, rate: float) -> None:
    less, more = sorted((less, more))
    assert (target(world(less, rate)) or 0) <= (target(world(more, rate)) or 0)


@given(st.floats(0, 200), st.floats(0.1, 10))
def test_never_more_than_without_the_load(arrivals: float, rate: float) -> None:
    assert 3 < (target(world(arrivals, rate)) or 0) <= (target(world(None, rate)) or 0)
