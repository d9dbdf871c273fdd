"""Who wins when a reactive signal and a forecast disagree about one variant. Used where the two are combined."""

from __future__ import annotations

from typing import NamedTuple

from modelyard.autoscaling.decision import Action
from modelyard.autoscaling.reasons import Explanation, Reason


class Arbitration(NamedTuple):
    """The replicas that win, whether safety overrode the forecast, and why."""

    target: int
    overridden: bool
    why: Explanation


def arbitrate(current: int, saturation: int, forecast: int, scale_down_safe: bool | None = None) -> Arbitration:
    """Combine a saturation target and a forecast target; both are replicas.

    ``scale_down_safe`` is the model's saturation verdict, ``None`` when there is no analysis (then it cannot block).
    When both want more, the larger wins: following the forecast below what saturation asks for would starve the model.
    """
    reactive, proactive = Action.of(saturation, current), Action.of(forecast, current)
    if reactive is Action.UP and proactive is Action.DOWN:
        return Arbitration(current, True, Explanation(Reason.VETOED))
    if proactive is Action.DOWN and scale_down_safe is False:
        return Arbitration(current, True, Explanation(Reason.NOT_SAFE))
    if reactive is Action.UP and proactive is Action.NONE:
        return Arbitration(saturation, False, Explanation(Reason.SATURATION_MORE))
    if reactive is Action.UP and proactive is Action.UP:
        return Arbitration(max(saturation, forecast), False, Explanation(Reason.LARGER_WINS))
    if proactive is not Action.NONE:
        return Arbitration(forecast, False, Explanation(Reason.FORECAST_DECIDES))
    return Arbitration(current, False, Explanation(Reason.NOTHING_ASKED))
