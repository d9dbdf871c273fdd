"""Predictions for a replica without load, where the queueing model has none.

WVA SLO reference, "Zero load".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from modelyard.autoscaling.sizing.chain import max_rates
from modelyard.autoscaling.sizing.profiles import FloatArray, Profiles


@dataclass(frozen=True, slots=True)
class Idle:
    """Latencies of the first request in ms and the highest rate in requests per second, arrays of shape (n,)."""

    ttft: FloatArray
    itl: FloatArray
    rate: FloatArray


def idle(profiles: Profiles, *, published: bool = False) -> Idle:
    """What an idle replica does to a single request.

    ``published`` takes the prompt as one token and, as the highest rate, a number that has no meaning but is
    reported by the documented algorithm. Rows that are not valid are NaN.
    """
    if published:
        prefill = profiles.gamma + profiles.delta
        with np.errstate(divide="ignore", invalid="ignore"):
            service = prefill + profiles.alpha + profiles.beta * profiles.max_batch
            return Idle(ttft=prefill, itl=profiles.alpha + profiles.beta, rate=1000.0 * profiles.max_batch / service)
    used = profiles.repaired()
    one = np.where(used.valid, 1.0, np.nan)
    return Idle(ttft=used.prefill(one), itl=used.decode(one), rate=max_rates(used))
