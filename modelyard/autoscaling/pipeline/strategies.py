"""The registry of strategies: how models and policy bindings are decided.

A new strategy is a module with a class that has ``propose``, a name in ``StrategyName`` and an entry in ``REGISTRY``.
One for models is chosen by ``analyzerName`` of the saturation ConfigMap and by the compatibility mode.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from modelyard.autoscaling.bindings import BindingStrategy, TargetMetrics
from modelyard.autoscaling.configuration import Compatibility
from modelyard.autoscaling.published import (
    ByTotal,
    PublishedPercentages,
    PublishedTargetMetrics,
    PublishedTokens,
    slo as published_slo,
    zero,
)
from modelyard.autoscaling.variants import (
    TOKEN_ANALYZER,
    ByNode,
    Checked,
    Counting,
    Percentages,
    StrategyEntry,
    Tokens,
    VariantStrategy,
    WithZero,
    proven_idle,
)
from modelyard.autoscaling.variants.slo import LatencyTargets, forecasting


class StrategyName(StrEnum):
    """The strategies that exist."""

    PERCENTAGES = "percentages"
    TOKENS = "tokens"
    PUBLISHED_PERCENTAGES = "published-percentages"
    PUBLISHED_TOKENS = "published-tokens"
    TARGET_METRICS = "target-metrics"
    PUBLISHED_TARGET_METRICS = "published-target-metrics"


def live(strategy: VariantStrategy, analyzer: str) -> StrategyEntry:
    """Return the entry of a threshold strategy; with targets, a forecast is combined with it. Demand wakes variants."""
    checked = Checked(strategy)
    return StrategyEntry(WithZero(checked), WithZero(LatencyTargets(checked), waking=checked), proven_idle, analyzer)


def documented(strategy: VariantStrategy, analyzer: str) -> StrategyEntry:
    """Return the entry of an algorithm as its reference documents it."""
    return StrategyEntry(
        WithZero(Checked(strategy, strict=False), wake=zero.wake_all),
        WithZero(published_slo.PublishedForecast(), wake=None),
        zero.idle,
        analyzer,
        Compatibility.PUBLISHED,
        remembers=False,
    )


class BindingEntry(NamedTuple):
    """The strategy for the policy bindings of one compatibility mode."""

    strategy: BindingStrategy
    compatibility: Compatibility = Compatibility.REPAIRED


REGISTRY: dict[StrategyName, StrategyEntry | BindingEntry] = {
    StrategyName.PERCENTAGES: live(Percentages(), ""),
    StrategyName.TOKENS: live(Tokens(), TOKEN_ANALYZER),
    StrategyName.PUBLISHED_PERCENTAGES: documented(PublishedPercentages(), ""),
    StrategyName.PUBLISHED_TOKENS: documented(PublishedTokens(), TOKEN_ANALYZER),
    StrategyName.TARGET_METRICS: BindingEntry(TargetMetrics()),
    StrategyName.PUBLISHED_TARGET_METRICS: BindingEntry(PublishedTargetMetrics(), Compatibility.PUBLISHED),
}
FORECASTINGS = {Compatibility.PUBLISHED: published_slo.FORECASTING, Compatibility.REPAIRED: forecasting.FORECASTING}
COUNTINGS: dict[Compatibility, Counting] = {Compatibility.REPAIRED: ByNode, Compatibility.PUBLISHED: ByTotal}


def entries() -> dict[tuple[Compatibility, str], StrategyEntry]:
    """Return the entries of models by mode and analyzer."""
    return {(e.compatibility, e.analyzer): e for e in REGISTRY.values() if isinstance(e, StrategyEntry)}


def analyzers() -> frozenset[str]:
    """Return the values of ``analyzerName`` that choose a strategy."""
    return frozenset(analyzer for _, analyzer in entries())


def binding_strategy(compatibility: Compatibility) -> BindingStrategy:
    """Return the strategy of the policy bindings of a mode."""
    entries = (entry for entry in REGISTRY.values() if isinstance(entry, BindingEntry))
    return next(entry.strategy for entry in entries if entry.compatibility is compatibility)
