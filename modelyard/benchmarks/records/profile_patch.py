"""Merge patch that gives a VariantAutoscaling a fitted profile and its provenance. Pure."""

from __future__ import annotations

import json
from typing import Any

from modelyard.autoscaling.fleet import NAMES, PROVENANCE
from modelyard.autoscaling.sizing import Fit, FitError, Parameter


def patch(
    fit: Fit, source: str, max_batch: int | None = None, *, engine: Fit | None = None, measured: str = ""
) -> dict[str, Any]:
    """Return the merge patch that gives a VariantAutoscaling this profile.

    ``engine`` is the fit of the engine where the profile was laid through it, and ``measured`` when that was. The batch
    is no more than the cache holds of the longest requests. Raises ``FitError`` where alpha is 0: nothing can
    be sized.
    """
    if fit.alpha.estimate <= 0:
        raise FitError("alpha is 0, with which nothing can be sized: measure again at low concurrency")
    parameters = {name: f"{getattr(fit, name).estimate:.6g}" for name in NAMES}
    runs = engine or fit
    provenance: dict[str, Any] = {
        "source": source[:600],
        "runs": len(runs.points),
        "intervals": {name: _bounds(getattr(runs, name)) for name in NAMES},
        "rSquared": {"itl": round(runs.itl.r_squared, 4), "ttft": round(runs.ttft.r_squared, 4)},
        "range": {name: [round(bound, 1) for bound in bounds] for name, bounds in runs.ranges.items()},
    }
    if engine is not None:
        provenance["engine"] = {name: float(f"{getattr(engine, name).estimate:.6g}") for name in NAMES}
        provenance["profile"] = parameters
        provenance["for"] = {name: round(fit.ranges[name][1], 1) for name in ("prompt_tokens", "output_tokens")}
    given = {"measured": measured[:40], "kvTokens": runs.kv_tokens, "startupSeconds": runs.startup}
    provenance |= {name: value for name, value in given.items() if value}
    batch = max_batch or runs.usable_batch
    if runs.kv_tokens:
        tokens = sum(fit.ranges[name][1] for name in ("prompt_tokens", "output_tokens"))
        batch = max(1, min(batch, int(runs.kv_tokens / tokens)))
    profile = {
        "perfParms": {
            "decodeParms": {name: parameters[name] for name in NAMES[:2]},
            "prefillParms": {name: parameters[name] for name in NAMES[2:]},
        },
        "maxBatchSize": batch,
    }
    annotations = {PROVENANCE: json.dumps(provenance, separators=(",", ":"))}
    return {"metadata": {"annotations": annotations}, "spec": {"variantProfile": profile}}


def _bounds(parameter: Parameter) -> list[float] | None:
    bounds = parameter.low, parameter.high
    return None if bounds[0] != bounds[0] else [float(f"{bound:.4g}") for bound in bounds]
