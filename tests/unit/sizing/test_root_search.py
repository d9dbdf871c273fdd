"""The bracketed search, on functions that are hard on Newton and interpolation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from modelyard.autoscaling.sizing.search import Edge, find

CASES: list[tuple[Callable[[np.ndarray], np.ndarray], float, float, float]] = [
    (lambda x: np.exp(30 * x) - 2, -1, 1, np.log(2) / 30),
    (lambda x: np.tanh(50 * (x - 0.3)), -5, 1, 0.3),
    (lambda x: (x - 0.7) ** 3, -1, 1, 0.7),
    (lambda x: x + 1e-9 * np.sin(1e3 * x) - 0.25, 0, 1, 0.25),
    (lambda x: np.where(x < 0.5, -1e-8, x - 0.5), 0, 1, 0.5),
    (lambda x: np.where(x < 0.5, -np.inf, np.inf), 0, 1, 0.5),
]


@pytest.mark.parametrize("guess", [np.nan, 0.01, 0.9])
def test_every_root_is_found(guess: float) -> None:
    def function(at: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        value = np.array([CASES[row][0](np.float64(x)) for x, row in zip(at, rows, strict=True)])
        after = np.array([CASES[row][0](np.float64(x + 1e-7)) for x, row in zip(at, rows, strict=True)])
        with np.errstate(invalid="ignore"):
            return value, (after - value) / 1e-7

    everything = np.arange(len(CASES))
    low, high = (np.array([case[i] for case in CASES], dtype=float) for i in (1, 2))
    found = find(
        function, Edge(low, *function(low, everything)), Edge(high, *function(high, everything)),
        np.full(len(CASES), guess),
    )  # fmt: skip
    assert found == pytest.approx([case[3] for case in CASES], abs=1e-4)
    assert found[[0, 1, 3]] == pytest.approx([CASES[i][3] for i in (0, 1, 3)], abs=2e-9)
