"""Who wins when a reactive signal and a forecast disagree about one variant. Used where the two are combined."""

from __future__ import annotations

from typing import NamedTuple

from modelyard.autoscaling.decision import Action


class Arbitration(NamedTuple):
    """The replicas that win, whether safety overrode the forecast, and why in a few words."""

    target: int
    overridden: bool
    why: str


def arbitrate(current: int, saturation: int, forecast: int, scale_down_safe: bool | None = None) -> Arbitration:
    """Combine a saturation target and a forecast target; both are replicas.

    ``scale_down_safe`` is the model's saturation verdict, ``None`` when there is no analysis (then it cannot block).
    When both want more, the larger wins: following the forecast below what saturation asks for would starve the model.
    """
    reactive, proactive = Action.of(saturation, current), Action.of(forecast, current)
    if reactive is Action.UP and proactive is Action.DOWN:
        return Arbitration(current, True, "saturation asks for more: the forecast's scale-down is vetoed")
    if proactive is Action.DOWN and scale_down_safe is False:
        return Arbitration(current, True, "scale-down would not be safe: the forecast is blocked")
    if reactive is Action.UP and proactive is Action.NONE:
        return Arbitration(saturation, False, "saturation asks for more")
    if reactive is Action.UP and proactive is Action.UP:
        return Arbitration(max(saturation, forecast), False, "both ask for more: the larger wins")
    if proactive is not Action.NONE:
        return Arbitration(forecast, False, "the forecast decides")
    return Arbitration(current, False, "no change is asked for")
