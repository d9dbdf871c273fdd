"""The repaired queueing model. WVA SLO reference, "Measures at rate", "Effective concurrency, ITL and TTFT"."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from modelyard.autoscaling.sizing.profiles import FloatArray, IntArray, Profiles
from modelyard.autoscaling.sizing.states import Chain, Occupancy, blocks

LOWEST = 0.001
"""Lowest rate considered, as a share of the departure rate of a single request."""
HIGHEST = 0.999
"""Highest rate considered, as a share of the departure rate at the batch limit."""


@dataclass(frozen=True, slots=True)
class Measures:
    """Predicted means at one rate per row, arrays of shape (n,); NaN where the model has no value.

    ``throughput`` is requests per second, ``in_system`` and ``in_service`` requests, times are milliseconds.
    ``effective_concurrency`` is the batch an average request experiences, from which ``prefill``, ``ttft`` and
    ``itl`` follow. ``utilisation`` is requests in service over the batch limit; ``loss`` the share of arrivals that
    find the queue full.
    """

    throughput: FloatArray
    in_system: FloatArray
    in_service: FloatArray
    response: FloatArray
    service: FloatArray
    wait: FloatArray
    effective_concurrency: FloatArray
    prefill: FloatArray
    ttft: FloatArray
    itl: FloatArray
    utilisation: FloatArray
    loss: FloatArray

    @classmethod
    def unknown(cls, rows: int) -> Self:
        return cls(*(np.full(rows, np.nan) for _ in fields(cls)))


Measuring = Callable[[Profiles, Occupancy], Measures]
"""From the state sums of valid rows to the measures."""


def max_rates(profiles: Profiles) -> FloatArray:
    """Highest rate the model covers, requests per second: 0.999 of the departure rate at the batch limit."""
    batch = profiles.max_batch.astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = 1000.0 * (HIGHEST * batch) / (profiles.service_base + profiles.service_slope * batch)
    return np.where(profiles.valid, rate, np.nan)


def analyse(profiles: Profiles, rates: ArrayLike) -> Measures:
    """Predicted measures of each row at its rate (requests per second, shape (n,) or a number for all).

    NaN for invalid rows and rates outside (0, ``max_rates``]. ``itl`` is NaN for single output tokens: no interval.
    """
    return analysed(profiles.repaired(), rates, measures)


def analysed(used: Profiles, rates: ArrayLike, measuring: Measuring) -> Measures:
    """``analyse`` for profiles as they are, with a way of measuring."""
    result = Measures.unknown(len(used))
    for rows, part, _, occupancy in covered(used, rates):
        found = measuring(part, occupancy)
        for field in fields(Measures):
            getattr(result, field.name)[rows] = getattr(found, field.name)
    return result


def covered(used: Profiles, rates: ArrayLike) -> Iterator[tuple[IntArray, Profiles, Chain, Occupancy]]:
    """Yield the covered rows (indices, profiles, chain, its state) at their rates in requests/s, a block at a time."""
    wanted = np.broadcast_to(np.asarray(rates, dtype=np.float64), (len(used),))
    with np.errstate(invalid="ignore"):
        chosen = np.flatnonzero(used.valid & (wanted > 0) & (wanted <= max_rates(used)))
    chosen = chosen[np.argsort(used.max_batch[chosen], kind="stable")]
    for block in blocks(used.max_batch[chosen]):
        rows = chosen[block]
        part = used.take(rows)
        chain = chain_of(part)
        yield rows, part, chain, chain.at(wanted[rows] / 1000.0)


def chain_of(profiles: Profiles) -> Chain:
    """The chain of valid rows."""
    return Chain(profiles.service_base, profiles.service_slope, profiles.max_batch, profiles.queue_limit)


def effective_concurrency(profiles: Profiles, found: Occupancy) -> FloatArray:
    """The batch an average request experiences, between 0 and the batch limit.

    It inverts the mean service time, and service times are affine in the batch, so it is the mean batch an accepted
    request finds with itself included: the chain has it without a division. Where the service time does not depend
    on the batch it is the mean in service.
    """
    return np.where(profiles.service_slope > 0, found.seen, found.in_service)


def measures(profiles: Profiles, found: Occupancy) -> Measures:
    """From the state sums of valid rows to the measures."""
    batch = effective_concurrency(profiles, found)
    return measured(profiles, found, batch, np.where(profiles.output_tokens > 1, profiles.decode(batch), np.nan))


def measured(profiles: Profiles, found: Occupancy, batch: FloatArray, itl: FloatArray) -> Measures:
    """The measures for requests that experience ``batch`` and ``itl``."""
    throughput = found.rate * (1.0 - found.loss)
    service = found.in_service / throughput
    prefill = profiles.prefill(batch)
    return Measures(
        throughput=throughput * 1000.0,
        in_system=found.in_service + throughput * found.wait,
        in_service=found.in_service,
        response=service + found.wait,
        service=service,
        wait=found.wait,
        effective_concurrency=batch,
        prefill=prefill,
        ttft=found.wait + prefill,
        itl=itl,
        utilisation=np.clip(found.in_service / profiles.max_batch, 0.0, 1.0),
        loss=found.loss,
    )
