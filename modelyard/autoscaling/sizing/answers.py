"""What sizing is asked and what it answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from modelyard.autoscaling.sizing.profiles import BoolArray, FloatArray, IntArray

TextArray = NDArray[np.str_]


@dataclass(frozen=True, slots=True)
class Targets:
    """Latency targets in ms and generation rate in tokens/s, arrays of shape (n,); 0 means no target."""

    ttft: FloatArray
    itl: FloatArray
    tps: FloatArray

    @classmethod
    def of(cls, rows: Iterable[Sequence[float]]) -> Self:
        """From rows of (ttft, itl, tps)."""
        table = np.array([tuple(row) for row in rows], dtype=np.float64).reshape(-1, 3)
        return cls(*(np.ascontiguousarray(column) for column in table.T))

    @classmethod
    def each(cls, rows: int, ttft: ArrayLike = 0.0, itl: ArrayLike = 0.0, tps: ArrayLike = 0.0) -> Self:
        """The same, or one array each, for ``rows`` rows."""
        return cls(*(np.broadcast_to(np.asarray(t, dtype=np.float64), (rows,)).copy() for t in (ttft, itl, tps)))

    def take(self, index: IntArray) -> Self:
        return type(self)(self.ttft[index], self.itl[index], self.tps[index])


@dataclass(frozen=True, slots=True)
class Sizing:
    """What one replica can carry. Arrays of shape (n,), rates in requests per second, times in ms.

    ``rate_ttft``, ``rate_itl`` and ``rate_tps`` are the highest rates within each target (NaN where it cannot be
    met), ``offered`` the least of them after the utilisation cap, ``rate`` the throughput there: the number to
    divide load by. ``ttft``, ``itl`` and ``utilisation`` are predictions at ``offered``; with a percentile, ``ttft``
    is that percentile. ``binding`` names what limits: "TTFT", "ITL", "TPS" or "stability", and for an infeasible row
    a target that cannot be met; it is empty for rows that are not valid. ``best_ttft`` and ``best_itl`` are the
    lowest values an almost idle replica reaches. ``fallback_rate`` is ``rate`` for targets that a busy replica can
    meet; for a target below ``NEAREST`` times its best value, met or not, the throughput with the target moved there
    (where it cannot be met, capped at the utilisation cap). It is never 0, and never higher for a tighter target.
    Rows that are not valid are infeasible and NaN.
    """

    rate_ttft: FloatArray
    rate_itl: FloatArray
    rate_tps: FloatArray
    offered: FloatArray
    rate: FloatArray
    ttft: FloatArray
    itl: FloatArray
    utilisation: FloatArray
    binding: TextArray
    feasible: BoolArray
    best_ttft: FloatArray
    best_itl: FloatArray
    fallback_rate: FloatArray

    @classmethod
    def unknown(cls, rows: int) -> Self:
        columns: dict[str, object] = {field.name: np.full(rows, np.nan) for field in fields(cls)}
        columns["binding"], columns["feasible"] = np.full(rows, "", dtype="<U9"), np.zeros(rows, dtype=bool)
        return cls(**columns)  # type: ignore[arg-type]
