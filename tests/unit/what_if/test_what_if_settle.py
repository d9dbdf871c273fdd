"""The decision in virtual time: what is held, what moves, when it ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from builders import NOW, REPAIRED, Serving, gpu_node, hpa, make_fleet, records
from examples import few
from hypothesis import given, strategies as st
from policy_builders import FREE, NO_PANIC, WRITTEN, binding, each, policy, target
from slo_builders import SLO, slo_fleet

from modelyard.autoscaling.configuration.settings import Compatibility, FleetSettings
from modelyard.autoscaling.fleet.binding_view import Behaviour, DirectionLimits
from modelyard.autoscaling.fleet.fleet import Fleet
from modelyard.autoscaling.memory.variants import VariantMemory
from modelyard.autoscaling.pipeline.decide import decide
from modelyard.autoscaling.what_if import Settled, imagine, parse, settle
from modelyard.autoscaling.what_if.settle import End
from modelyard.autoscaling.what_if.spread import PodEngine, Spread
from modelyard.autoscaling.what_if.virtual import VirtualFleet
from modelyard.metrics.vocabulary.values import ModelLoad
from modelyard.objects import Key


def moves(found: Settled) -> list[tuple[float, str, int | None, int]]:
    return [(m.seconds, m.object.partition("/")[2], m.before, m.after) for m in found.path]


def last(found: Settled) -> dict[str, int | None]:
    return {r.identity.key.name: r.target.replicas for r in found.last.records}


def test_a_quiet_fleet_settles_at_once() -> None:
    fleet = make_fleet(Serving("a", load=[(0.5, 0.0)] * 2, running=10))
    found = settle(fleet, REPAIRED)
    assert (found.end, found.seconds, found.path) == (End.SETTLED, 0, ())
    assert last(found) == {"a": 2}


def test_the_first_step_is_the_next_tick_and_replicas_take_their_time() -> None:
    """Two full replicas: one more at once, ready after its start-up; then the load is on three."""
    memory = VariantMemory(startup_seconds=70)
    fleet = make_fleet(Serving("a", load=[(0.75, 0.0)] * 2, running=30, memory=memory, startup=70))
    found = settle(fleet, REPAIRED)
    first = decide(fleet, REPAIRED).records[0]
    assert moves(found) == [(0, "a", 2, first.target.replicas)]
    assert found.path[0].message == first.why.message
    assert found.seconds == 75  # the tick after 70 s
    assert found.last.records[0].now.ready == 3
    assert (found.last.records[0].why.evidence or None) is not None
    assert found.last.records[0].why.evidence.max_kv == pytest.approx(0.5)  # type: ignore[union-attr]


def test_requests_are_neither_lost_nor_made() -> None:
    fleet = make_fleet(Serving("a", load=[(0.95, 9.0), (0.9, 2.0), (0.5, 0.0)], running=30))
    world = VirtualFleet(fleet, REPAIRED)
    seen = []
    for _ in range(30):
        now = world.fleet()
        seen.append(sum((p.running or 0) + (p.waiting or 0) for p in now.signals.pods))
        world.follow(decide(now, REPAIRED))
        world.advance()
    assert seen == pytest.approx([101] * 30)
    assert len(now.signals.pods) > 3


def test_scale_down_waits_for_its_delay_and_goes_step_by_step() -> None:
    fleet = slo_fleet(SLO("v", 6), load=20)
    found = settle(fleet, FleetSettings(headroom=False, scale_down_delay=60))
    assert [(m.before, m.after) for m in found.path] == [(6, 5), (5, 4), (4, 3), (3, 2)]
    assert (found.path[0].seconds, found.end) == (60, End.SETTLED)


def test_a_step_cap_needs_several_ticks() -> None:
    fleet = imagine(slo_fleet(SLO("v", 2, load=(0.01, 0.0)), load=20), REPAIRED, parse(load=["20x"])).fleet
    found = settle(fleet, FleetSettings(max_step_up=4))
    assert moves(found)[0] == (0, "v", 2, 6)
    sizes = [after for _, _, _, after in moves(found)]
    assert len(sizes) > 2
    assert sizes == sorted(sizes)
    assert last(found) == {"v": 22}


def test_what_reads_the_gauge_follows_it() -> None:
    serving = Serving("a", load=[(0.9, 9.0)] * 2, running=30)
    found = settle(make_fleet(serving, consumers=[hpa(serving, maximum=3)]), REPAIRED)
    assert found.last.records[0].now.current == last(found)["a"] == 3


def test_nodes_that_are_full_keep_replicas_waiting() -> None:
    """Without the limiter nothing is refused; the scheduler would not place it all the same."""
    serving = Serving("a", load=[(0.9, 9.0)] * 2, running=30, pod={"node": "n", "gpus": 1})
    found = settle(make_fleet(serving, nodes=[gpu_node("n", 3)]), REPAIRED)
    (record,) = found.last.records
    assert record.now.ready == 3
    assert (record.now.current or 0) > 3


def test_an_idle_model_goes_to_zero_after_its_retention() -> None:
    zero = {"m": "model_id: meta/llama\nenable_scale_to_zero: true\nretention_period: 5m\n"}
    fleet = make_fleet(
        Serving("a", load=[(0.0, 0.0)], ready_age=30, created=NOW - 30, rate=0.0),
        zero=zero,
        counts={("chat", "meta/llama", 300): 0.0},
    )
    found = settle(fleet, REPAIRED)
    assert moves(found) == [(270, "a", 1, 0)]
    assert found.end is End.SETTLED


def test_a_woken_model_takes_its_queue_in() -> None:
    fleet = make_fleet(Serving("a", current=0, spec=0), signals={"gateway_queue": {("chat", "meta/llama"): 12.0}})
    found = settle(fleet, REPAIRED)
    assert moves(found) == [(0, "a", 0, 1)]
    assert found.last.records[0].now.ready == 1
    assert found.last.records[0].why.reason != "WokenByDemand"


def test_arrivals_stop_rising() -> None:
    history = tuple((NOW - 300 + 15 * i, 5 + 0.5 * i) for i in range(21))
    fleet = slo_fleet(SLO("v", 1), loads={("chat", "meta/llama"): ModelLoad(15.0, history)})
    found = settle(fleet, REPAIRED)
    assert found.end is End.SETTLED
    assert "rising" not in found.last.records[0].why.message
    world = VirtualFleet(fleet, REPAIRED)
    for _ in range(40):
        world.advance()
    (load,) = world.fleet().signals.loads.values()
    assert {rate for _, rate in load.history} == {15.0}
    assert world.fleet().now - load.history[-1][0] < 15


def test_published_mode_is_settled_too() -> None:
    fleet = make_fleet(Serving("a", load=[(0.78, 0.0)] * 2, running=30))
    found = settle(fleet, FleetSettings(compatibility=Compatibility.PUBLISHED))
    assert found.path[0].after == 3


def test_the_end_is_told_when_a_delay_is_longer_than_what_is_looked_at() -> None:
    fleet = make_fleet(Serving("a", load=[(0.1, 0.0)] * 2, running=1))
    found = settle(fleet, FleetSettings(scale_down_delay=1000), most_ticks=20)
    assert (found.end, found.path, found.looked_at) == (End.WAITING, (), 285)


def test_what_still_moves_when_time_is_up_is_told() -> None:
    """One more a minute, and thirty to go."""
    slowly = Behaviour(DirectionLimits(1, 0, 60, "Or", 0), DirectionLimits(1, 0, 60, "Or", 0), NO_PANIC)
    seen = target("w", 2, high=40, instances=each(2, 150.0), startup_seconds=0)
    heard: list[int] = []
    found = settle(world_of(binding(seen, policy_view=policy(slowly))), REPAIRED, most_ticks=30, heard=heard.append)
    assert heard == list(range(30))
    assert (found.end, found.looked_at) == (End.MOVING, 435)
    assert [m.after - (m.before or 0) for m in found.path] == [1] * len(found.path)
    assert found.path


@few
@given(
    loads=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 20)), min_size=1, max_size=4),
    running=st.integers(0, 100),
    factor=st.floats(0.2, 3),
)
def test_settling_is_deterministic_bounded_and_begins_with_the_next_tick(
    loads: list[tuple[float, float]], running: int, factor: float
) -> None:
    fleet = make_fleet(Serving("a", load=loads, running=running))
    fleet = imagine(fleet, REPAIRED, parse(load=[str(factor)])).fleet
    found = settle(fleet, REPAIRED, most_ticks=30)
    assert found == settle(fleet, REPAIRED, most_ticks=30)
    assert found.looked_at <= 29 * REPAIRED.tick
    first = decide(fleet, REPAIRED).records[0]
    now = [m.after for m in found.path if m.seconds == 0]
    assert now == ([first.target.replicas] if first.target.replicas != first.now.current else [])


# Spreading


def signals_of(**fields: Any) -> Fleet:
    return make_fleet(Serving("a", **fields))


def test_shares_stay_as_unfair_as_they_were() -> None:
    fleet = signals_of(load=[(0.6, 0.0), (0.3, 0.0)], running=20)
    before = list(fleet.signals.pods)
    engines = {Key("chat", f"a-{i}"): PodEngine(Key("chat", "a"), 256) for i in range(3)}
    spread = Spread(before, engines)
    assert spread.on(list(engines.items())[:2], "meta/llama") == before
    after = spread.on(engines.items(), "meta/llama")
    assert sum(p.running or 0 for p in after) == pytest.approx(40)
    assert (after[0].kv or 0) > (after[2].kv or 0) > 0
    assert all((p.kv or 0) < (b.kv or 0) for p, b in zip(after, before, strict=False))


def test_a_pod_that_does_not_report_everything_is_spread_by_value() -> None:
    fleet = signals_of(load=[(0.6, 4.0), (None, 2.0)], running=None)
    engines = {Key("chat", f"a-{i}"): PodEngine(Key("chat", "a")) for i in range(3)}
    after = Spread(fleet.signals.pods, engines).on(engines.items(), "meta/llama")
    assert sum(p.waiting or 0 for p in after) == pytest.approx(6)
    assert [p.kv is None for p in after] == [False, True, False]
    assert sum(p.kv or 0 for p in after) == pytest.approx(0.6)


# Bindings


def world_of(*views: Any) -> Fleet:
    return Fleet(NOW, bindings=views)


def test_instances_of_a_binding_come_and_dilute_the_metric() -> None:
    seen = target("w", 2, instances=each(2, 20.0), startup_seconds=40)
    found = settle(world_of(binding(seen, policy_view=policy(FREE))), REPAIRED)
    assert moves(found) == [(0, "b", 2, 4)]
    (record,) = found.last.bindings[0].records
    assert (record.now.current, record.now.ready, record.target.replicas, record.why.reason) == (4, 4, 4, "OnTarget")
    assert found.seconds == 45


def test_a_rate_limit_and_a_stabilization_show_in_the_path() -> None:
    up = settle(world_of(binding(target("w", 2, instances=each(2, 100.0)), policy_view=policy(WRITTEN))), REPAIRED)
    assert [m.after for m in up.path] == [6, 12, 20]
    assert up.path[0].seconds == 0
    assert all(b.seconds - a.seconds >= 60 for a, b in zip(up.path, up.path[1:], strict=False))
    down = settle(world_of(binding(target("w", 4, instances=each(4, 4.0)), policy_view=policy(WRITTEN))), REPAIRED)
    assert [(m.seconds, m.after) for m in down.path] == [(315, 2)]


def test_targets_of_an_optimizer_share_what_there_is() -> None:
    cheap = target("cheap", 1, 1, 3, cost=10, instances=each(1, 30.0))
    dear = target("dear", 1, 1, 4, cost=40, instances=each(1, 30.0))
    found = settle(world_of(binding(cheap, dear, optimizer=True, policy_view=policy(FREE))), REPAIRED)
    assert found.end is End.SETTLED
    assert {r.identity.variant_id: r.target.replicas for r in found.last.bindings[0].records} == {"cheap": 3, "dear": 3}


def test_an_unready_instance_and_a_missing_target() -> None:
    seen = target("w", 3, instances=each(2, 10.0), unready=1)
    found = settle(world_of(binding(seen, policy_view=policy(FREE))), REPAIRED)
    assert moves(found) == [(120, "b", 3, 2)]  # when the third is ready, two would do
    lost = settle(world_of(binding(target("w", None, problem="gone"), policy_view=policy(FREE))), REPAIRED)
    assert lost.path == ()


def test_variants_and_bindings_together() -> None:
    sized = slo_fleet(SLO("v", 1), load=40)
    fleet = replace(sized, bindings=(binding(target("w", 2, instances=each(2, 20.0)), policy_view=policy(FREE)),))
    found = settle(fleet, FleetSettings(headroom=False))
    assert {name for _, name, _, _ in moves(found)} == {"v", "b"}
    assert records(found.last)["v"].target.replicas == 3
