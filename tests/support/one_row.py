"""The queueing model asked about a single profile, in plain numbers."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace
from typing import Any

from modelyard.autoscaling.published import sizing as documented
from modelyard.autoscaling.sizing.answers import Targets
from modelyard.autoscaling.sizing.chain import LOWEST, analyse
from modelyard.autoscaling.sizing.profiles import Profiles
from modelyard.autoscaling.sizing.sizes import size


def _plain(found: Any) -> Any:
    return SimpleNamespace(**{field.name: getattr(found, field.name)[0].item() for field in fields(found)})


def analyse_one(*row: float, queue_limit: int | None = None, published: bool = False) -> Any:
    """``analyse`` for alpha, beta, gamma, delta, the batch limit, prompt and output tokens, and last the rate."""
    *profile, rate = row
    model = documented.analyse if published else analyse
    return _plain(model(Profiles.of([profile], queue_limit=queue_limit), rate))


def size_one(
    *row: float,
    ttft: float = 0.0,
    itl: float = 0.0,
    tps: float = 0.0,
    queue_limit: int | None = None,
    published: bool = False,
    **how: Any,
) -> Any:
    """``size`` for alpha, beta, gamma, delta, the batch limit, prompt and output tokens."""
    profiles, targets = Profiles.of([row], queue_limit=queue_limit), Targets.of([(ttft, itl, tps)])
    return _plain(documented.size(profiles, targets) if published else size(profiles, targets, **how))


def min_rates(profiles: Profiles) -> Any:
    """Lowest rate sizing considers, requests per second: 0.001 of the departure rate of a single request."""
    return 1000.0 * LOWEST / (profiles.service_base + profiles.service_slope)
