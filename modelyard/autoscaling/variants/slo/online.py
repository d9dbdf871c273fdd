"""Learning engines' speed in service, for variants without a profile and where ``FleetSettings.estimator`` asks for it.

Every five load windows a variant in calm is looked at once. What is learnt is the variant's memory, written only when
it says something new. Where it stands in for a profile there is no feedback, which would count the same difference
twice.
"""

from __future__ import annotations

from zlib import crc32

from modelyard.autoscaling.settings import FleetSettings
from modelyard.autoscaling.sizing.learning import LEAST, LearntSpeed, Observation, observe
from modelyard.autoscaling.sizing.stalls import sizes_of
from modelyard.autoscaling.variants.slo.feedback import CALM, calm, mean
from modelyard.autoscaling.variants.state import State, work_of
from modelyard.metrics.values import Buckets

NOTICEABLE = 0.02
"""Relative move of a parameter that is worth remembering."""
FIRST = 3 * LEAST
"""Observations that are all remembered."""


def known(state: State) -> LearntSpeed:
    """What was learnt of a variant's engine until now."""
    memory = work_of(state).memory
    return LearntSpeed(*memory.speed) if memory.speed is not None else LearntSpeed()


def learn(state: State, prompts: Buckets, settings: FleetSettings, now: float) -> None:
    """Take an observation, when it is the variant's turn and its last minutes were calm; ``prompts``: the histogram of
    its model's prompt sizes."""
    turns = max(1, round(CALM * settings.load_window / settings.tick))
    if int(now // settings.tick) % turns != crc32(str(state.variant.key).encode()) % turns:
        return
    if not calm(state, settings, now):
        return
    work = work_of(state)
    prompt, output, ttft, itl = (
        mean(work.performance, f"steady_{field}") for field in ("prompt", "output", "ttft", "itl")
    )
    rates = [signal.completed_rate for signal, _ in state.units if signal.completed_rate is not None]
    if prompt is None or output is None or ttft is None or itl is None or not rates:
        return
    before = known(state)
    found = observe(before, Observation(sum(rates) / len(rates), prompt, output, ttft, itl), sizes_of(prompts, prompt))
    old, new = before.speed, found.speed
    if old is None or new is None or before.seen < FIRST or found.seen < before.seen or _moved(old, new):
        work.memory = work.memory.model_copy(update={"speed": tuple(float(f"{value:.6g}") for value in found)})


def _moved(old: tuple[float, ...], new: tuple[float, ...]) -> bool:
    return any(abs(a - b) > NOTICEABLE * max(a, b) for a, b in zip(old, new, strict=True))
