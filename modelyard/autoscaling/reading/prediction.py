"""Expected latency and targets of an SLO form, kept with it for the exporter; rewritten on noticeable moves only."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

import orjson

from modelyard.autoscaling.decisions import Record

ANNOTATION = "modelyard.dev/prediction"
NOTICEABLE = 0.1
"""Share by which a predicted latency must differ from the one on record to be worth a write."""
PREDICTED = ("ttft", "itl")
TARGETS = ("ttft_target", "itl_target")


def read_prediction(annotations: Mapping[str, str]) -> dict[str, float]:
    """Milliseconds by name (``PREDICTED``, ``TARGETS``); a damaged annotation, as any tenant may write, gives none."""
    try:
        values = orjson.loads(annotations.get(ANNOTATION) or "{}")
    except ValueError:
        return {}
    if not isinstance(values, dict):
        return {}
    return {name: float(values[name]) for name in (*PREDICTED, *TARGETS) if _sane(values.get(name))}


def prediction_text(record: Record, annotations: Mapping[str, str]) -> str | None:
    """The annotation the record asks for: the stored text while it is near enough, ``None`` when there is none."""
    stored = read_prediction(annotations)
    told = record.why.prediction
    if told is None or record.identity.form != "slo":
        return None
    fresh = {name: round(value, 3) for name in (*PREDICTED, *TARGETS) if _sane(value := getattr(told, name))}
    if not fresh:
        return None
    if stored.keys() == fresh.keys() and all(
        abs(fresh[name] - stored[name]) <= (NOTICEABLE * stored[name] if name in PREDICTED else 0) for name in fresh
    ):
        return annotations[ANNOTATION]
    return json.dumps(fresh)


def _sane(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
