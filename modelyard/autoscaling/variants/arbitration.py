"""Who wins when a reactive signal and a forecast disagree about one variant. Used where the two are combined."""

from __future__ import annotations

from typing import NamedTuple

from modelyard.autoscaling.decisions import Action, Explanation, Reason


class Arbitration(NamedTuple):
    """The replicas that win, whether safety overrode the forecast, and why."""

    target: int
    overridden: bool
    why: Explanation


def arbitrate(current: int, saturation: int, forecast: int, scale_down_safe: bool | None = None) -> Arbitration:
    """Combine a saturation and a forecast target (replicas); ``scale_down_safe`` ``None``, no analysis, cannot block.

    When both want more, the larger wins: following a forecast below saturation's target would starve the model.
    """
    reactive, proactive = Action.of(saturation, current), Action.of(forecast, current)
    if proactive is Action.DOWN and (reactive is Action.UP or scale_down_safe is False):
        return Arbitration(current, True, Explanation(Reason.VETOED if reactive is Action.UP else Reason.NOT_SAFE))
    if reactive is Action.UP:
        outcome = Reason.SATURATION_MORE if proactive is Action.NONE else Reason.LARGER_WINS
        return Arbitration(max(saturation, forecast), False, Explanation(outcome))
    if proactive is not Action.NONE:
        return Arbitration(forecast, False, Explanation(Reason.FORECAST_DECIDES))
    return Arbitration(current, False, Explanation(Reason.NOTHING_ASKED))
