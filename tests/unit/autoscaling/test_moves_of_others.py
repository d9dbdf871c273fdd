"""Replicas somebody else asked for: more are only taken back by the rules for shrinking, fewer are put back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import EAGER, NOW, Serving, condition, one

from modelyard.autoscaling.configuration.settings import FleetSettings, Mode
from modelyard.autoscaling.memory.variants import VariantMemory

BUSY = [(0.65, 0)] * 4
IDLE = [(0.1, 0)] * 4


class TestGrownByHand:
    @pytest.mark.parametrize("memory", [VariantMemory(), VariantMemory(transition_target=3, transition_since=NOW - 30)])
    def test_load_that_needs_it_keeps_it(self, memory):
        record = one(Serving(load=BUSY, desired=2, memory=memory), settings=EAGER)
        assert (record.target.replicas, record.writes.scale) == (4, None)

    def test_before_the_replicas_are_there(self):
        record = one(Serving(load=[(0.4, 0)] * 2, spec=5, desired=2), settings=EAGER)
        assert (record.target.replicas, record.writes.scale, record.why.reason) == (5, None, "InTransition")
        adopted = one(Serving(load=[(0.4, 0)] * 2, spec=5), settings=EAGER)
        assert (adopted.target.replicas, adopted.writes.scale, adopted.why.reason) == (5, None, "InTransition")

    def test_while_our_own_replicas_still_start(self):
        first = one(Serving(load=[(0.75, 0)] * 2, desired=2))
        starting = one(Serving(load=[(0.6, 0)] * 2, current=3, ready=2, desired=3, memory=first.memory), now=NOW + 15)
        assert (first.target.replicas, starting.target.replicas) == (3, 3)
        s = Serving(load=[(0.6, 0)] * 2, current=7, ready=2, desired=3, memory=starting.memory)
        grown = one(s, now=NOW + 30)
        assert (grown.target.replicas, grown.writes.scale, grown.memory.transition_since) == (7, None, NOW + 30)

    def test_is_given_up_like_any_other(self):
        memory = VariantMemory(transition_target=5, transition_since=NOW - 600)
        assert one(Serving(load=[(0.65, 0)] * 2, spec=5, desired=5, memory=memory)).target.replicas == 2

    def test_what_is_not_needed_goes_by_the_rules(self):
        first = one(Serving(load=IDLE, desired=2))
        assert (first.target.replicas, first.why.reason) == (4, "ScaleDownDelayed")
        later = one(Serving(load=IDLE, desired=4, memory=first.memory), now=NOW + 120)
        assert (later.target.replicas, later.writes.scale, later.why.reason) == (3, 3, "CapacitySpare")

    def test_woken_by_hand(self):
        assert one(Serving(load=BUSY, desired=0)).target.replicas == 4


class TestOurOwnMove:
    def test_a_scale_down_that_was_not_written_is_written_again(self):
        decided = one(Serving(load=IDLE, desired=4), settings=EAGER)
        assert (decided.target.replicas, decided.memory.transition_target) == (3, 3)
        again = one(Serving(load=BUSY, desired=3, memory=decided.memory), settings=EAGER)
        assert (again.target.replicas, again.writes.scale, again.why.reason) == (3, 3, "InTransition")


class TestShrunkByHand:
    def test_fewer_replicas_are_put_back(self):
        record = one(Serving(load=[(0.65, 0)], desired=4), settings=EAGER)
        assert (record.target.replicas, record.writes.scale) == (4, 4)

    def test_zero_is_respected(self):
        record = one(Serving(current=0, spec=0, desired=4))
        assert (record.target.replicas, record.writes.scale) == (0, None)

    def test_signal_mode_leaves_the_way_to_the_hpa(self):
        record = one(Serving(load=BUSY, desired=2), settings=FleetSettings(actuation=Mode.SIGNAL))
        assert record.target.replicas == 2


class TestScalersUnknown:
    S = Serving(load=[(0.95, 0)] * 2, desired=2)
    ERROR = "horizontalpodautoscalers is forbidden"

    def test_direct_becomes_signal(self):
        record = one(self.S, consumers_error=self.ERROR)
        assert (record.writes.mode, record.writes.scale, record.target.replicas > 2) == (Mode.SIGNAL, None, True)
        notice = next(n for n in record.notices if n.reason == "ScalersUnknown")
        assert notice.kind == "Warning"
        assert self.ERROR in notice.message
        assert "grant list on horizontalpodautoscalers" in notice.message
        assert "could not be listed" in record.writes.applied_message
        assert condition(record, "OptimizationReady")[0] == "True"

    def test_signal_mode_has_nothing_to_lose(self):
        record = one(self.S, consumers_error=self.ERROR, settings=FleetSettings(actuation=Mode.SIGNAL))
        assert record.notices == ()

    def test_without_an_error_direct_stays_direct(self):
        assert one(replace(self.S)).writes.mode is Mode.DIRECT
