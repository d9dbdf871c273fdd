"""Learning engines' speed in service, for variants without a profile and where ``FleetSettings.estimator`` asks for it.

Every five load windows a variant in calm is looked at once. What is learnt is the variant's memory, written only when
it says something new. Where it stands in for a profile there is no feedback, which would count the same difference
twice.
"""

from __future__ import annotations

from zlib import crc32

from modelyard.autoscaling.configuration import FleetSettings
from modelyard.autoscaling.memory import SLOMemory
from modelyard.autoscaling.sizing import LEAST, LearntSpeed, SpeedObservation, observe, sizes_of
from modelyard.autoscaling.variants.objective import Objective
from modelyard.autoscaling.variants.observation import Observation
from modelyard.autoscaling.variants.slo.feedback import CALM, calm, mean
from modelyard.metrics.vocabulary import Buckets

NOTICEABLE = 0.02
"""Relative move of a parameter that is worth remembering."""
FIRST = 3 * LEAST
"""Observations that are all remembered."""


def known(memory: SLOMemory) -> LearntSpeed:
    """Return what was learnt of a variant's engine until now."""
    return LearntSpeed(*memory.speed) if memory.speed is not None else LearntSpeed()


def learn(seen: Observation, objective: Objective, prompts: Buckets, settings: FleetSettings, now: float) -> SLOMemory:
    """Return the memory with an observation, when it is the variant's turn and its last minutes were calm."""
    memory, performance = objective.memory, objective.performance
    turns = max(1, round(CALM * settings.load_window / settings.tick))
    if int(now // settings.tick) % turns != crc32(str(seen.key).encode()) % turns:
        return memory
    if not calm(seen, performance, settings, now):
        return memory
    prompt, output, ttft, itl = (mean(performance, f"steady_{field}") for field in ("prompt", "output", "ttft", "itl"))
    rates = [signal.completed_rate for signal, _ in seen.units if signal.completed_rate is not None]
    if prompt is None or output is None or ttft is None or itl is None or not rates:
        return memory
    before, seen_now = known(memory), SpeedObservation(sum(rates) / len(rates), prompt, output, ttft, itl)
    after = observe(before, seen_now, sizes_of(prompts, prompt))
    old, new = before.speed, after.speed
    if old is None or new is None or before.seen < FIRST or after.seen < before.seen or _moved(old, new):
        return memory.model_copy(update={"speed": tuple(float(f"{value:.6g}") for value in after)})
    return memory


def _moved(old: tuple[float, ...], new: tuple[float, ...]) -> bool:
    return any(abs(a - b) > NOTICEABLE * max(a, b) for a, b in zip(old, new, strict=True))
