"""Performance profiles as arrays, a row per (variant, accelerator) pair at one request size. All times in ms."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

QUEUE_PER_BATCH = 10
"""Requests that may wait, as a multiple of the batch limit."""

_COLUMNS = 7


@dataclass(frozen=True)
class Profiles:
    """Rows of performance parameters, each an array of shape (n,) (WVA SLO reference, "Parameters and service time").

    With a batch of b requests one prefill takes ``gamma + delta * prompt_tokens * b`` ms (nothing without prompt) and
    one decode step ``alpha + beta * b`` ms. ``max_batch`` is the engine's limit of concurrent requests;
    ``queue_limit`` the requests that may wait beyond it, ten times as many unless given. Rows that describe no
    engine (NaN, negative decode times, no batch, less than one output token) are allowed; see ``valid``.
    """

    alpha: FloatArray
    beta: FloatArray
    gamma: FloatArray
    delta: FloatArray
    max_batch: IntArray
    prompt_tokens: FloatArray
    output_tokens: FloatArray
    queue_limit: IntArray

    @classmethod
    def of(cls, rows: Iterable[Sequence[float]], queue_limit: ArrayLike | None = None) -> Self:
        """From rows of (alpha, beta, gamma, delta, max_batch, prompt_tokens, output_tokens).

        Raises ValueError when a row has another length. A batch that is not a finite number counts as 0.
        """
        listed = [tuple(row) for row in rows]
        for number, row in enumerate(listed):
            if len(row) != _COLUMNS:
                names = "alpha, beta, gamma, delta, max_batch, prompt_tokens, output_tokens"
                raise ValueError(f"profile row {number} has {len(row)} values; give {names}")
        table = np.array(listed, dtype=np.float64).reshape(-1, _COLUMNS).T.copy()
        return cls.from_columns(*table, queue_limit=queue_limit)

    @classmethod
    def from_columns(
        cls,
        alpha: ArrayLike,
        beta: ArrayLike,
        gamma: ArrayLike,
        delta: ArrayLike,
        max_batch: ArrayLike,
        prompt_tokens: ArrayLike,
        output_tokens: ArrayLike,
        *,
        queue_limit: ArrayLike | None = None,
    ) -> Self:
        """From columns, numbers or arrays that broadcast to one shape (n,)."""
        given = [np.asarray(c, dtype=np.float64) for c in (alpha, beta, gamma, delta, prompt_tokens, output_tokens)]
        batch = _whole(max_batch)
        queue = QUEUE_PER_BATCH * batch if queue_limit is None else _whole(queue_limit)
        *columns, batch, queue = np.broadcast_arrays(*(np.atleast_1d(c) for c in (*given, batch, queue)))
        a, b, g, d, prompt, output = (np.ascontiguousarray(c, dtype=np.float64) for c in columns)
        return cls(a, b, g, d, np.ascontiguousarray(batch), prompt, output, np.ascontiguousarray(queue))

    def __len__(self) -> int:
        return int(self.alpha.shape[0])

    def take(self, index: NDArray[np.int64] | slice) -> Self:
        return type(self)(*(getattr(self, field.name)[index] for field in fields(self)))

    def repaired(self) -> Self:
        """With a negative ``gamma`` or ``delta``, which only the noise of a fit can produce, taken as 0."""
        gamma, delta = (np.where(values < 0, 0.0, values) for values in (self.gamma, self.delta))
        return replace(self, gamma=gamma, delta=delta)

    @cached_property
    def decode_steps(self) -> FloatArray:
        """Decode steps of one request: the first token comes from prefill, if there is a prompt."""
        alone = (self.prompt_tokens == 0) & (self.output_tokens == 1)
        return np.where(alone, 1.0, self.output_tokens - 1.0)

    @cached_property
    def prefill_base(self) -> FloatArray:
        """``gamma`` where there is a prompt, else 0 (ms)."""
        return np.where(self.prompt_tokens > 0, self.gamma, 0.0)

    @cached_property
    def prefill_slope(self) -> FloatArray:
        """Prefill time per concurrent request (ms)."""
        return self.delta * self.prompt_tokens

    @cached_property
    def service_base(self) -> FloatArray:
        """Part of a request's service time that does not depend on the batch (ms)."""
        return self.prefill_base + self.decode_steps * self.alpha

    @cached_property
    def service_slope(self) -> FloatArray:
        """Service time added by each concurrent request (ms)."""
        return self.prefill_slope + self.decode_steps * self.beta

    @cached_property
    def valid(self) -> BoolArray:
        """Rows that describe an engine: finite, alpha and beta not negative, every service time above 0."""
        numbers = (self.alpha, self.beta, self.gamma, self.delta, self.prompt_tokens, self.output_tokens)
        with np.errstate(invalid="ignore", over="ignore"):
            full = self.service_base + self.service_slope * self.max_batch
            one = self.service_base + self.service_slope
            return (
                np.isfinite(np.array(numbers)).all(axis=0)
                & (self.alpha >= 0)
                & (self.beta >= 0)
                & (self.prompt_tokens >= 0)
                & (self.output_tokens >= 1)
                & (self.max_batch >= 1)
                & (self.queue_limit >= 0)
                & (one > 0)
                & (full > 0)
                & np.isfinite(full)
            )

    def prefill(self, batch: FloatArray) -> FloatArray:
        """Prefill time at a batch that need not be whole (ms)."""
        return self.prefill_base + self.prefill_slope * batch

    def decode(self, batch: FloatArray) -> FloatArray:
        """Time of one decode step at a batch that need not be whole (ms)."""
        return self.alpha + self.beta * batch


def _whole(values: ArrayLike) -> IntArray:
    numbers = np.asarray(values, dtype=np.float64)
    return np.where(np.isfinite(numbers), np.floor(numbers), 0.0).astype(np.int64)
