"""The token analyzer as a strategy of ``decide``: chosen by ``analyzerName: saturation`` of the saturation ConfigMap.

One of these is made per tick, so that what the pods report is indexed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from modelyard.autoscaling.variants.attribution import Performances, with_groups
from modelyard.autoscaling.variants.saturation_config import TokenThresholds
from modelyard.autoscaling.variants.state import Group, State
from modelyard.autoscaling.variants.strategy import Moment, Verdict, assessed
from modelyard.autoscaling.variants.tokens.analysis import Queue, analyse_tokens
from modelyard.metrics.values import PodPerformance


class WithPerformance:
    """What the pods report, indexed when first asked."""

    def __init__(self, performance: Sequence[PodPerformance], states: Sequence[State] = ()) -> None:
        self._reported = performance
        self._states = states

    @cached_property
    def _performance(self) -> Performances:
        return with_groups(self._reported, self._states)


class Tokens(WithPerformance):
    """The repaired token analysis with the common rules for targets."""

    def propose(self, group: Group, running: Sequence[State], tick: Moment) -> Verdict:
        """Every state of the group gets a target: variants at zero may be woken."""
        settings, now, limits = tick.settings, tick.fleet.now, group.config.thresholds
        thresholds = group.config.tokens or TokenThresholds()
        queue = Queue(tick.backlog, tick.backlog_bytes)
        analysis = analyse_tokens(group.states, self._performance, limits, thresholds, settings, now, queue)
        for state in group.states:
            if state.name in analysis.compute_limits:
                state.updates["compute_limits"] = analysis.compute_limits[state.name]
        return assessed(group, analysis, tick)
