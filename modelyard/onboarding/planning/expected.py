"""Load and targets of an onboarding that are not given in numbers: those of a trace and of a service class. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from modelyard.autoscaling.configuration import FleetSettings
from modelyard.autoscaling.fleet import SLOSpec
from modelyard.autoscaling.variants import ServiceClasses
from modelyard.objects import Key
from modelyard.traffic.traces import Trace

MINUTE = 60.0


def expected(trace: Trace) -> dict[str, float]:
    """The rate of its busiest minute (of all of a shorter one), and the means of its lengths."""
    rate = trace.rate
    if trace.duration > MINUTE:
        rate = float(np.bincount((trace.at // MINUTE).astype(np.int64)).max(initial=0)) / MINUTE
    lengths = {"prompt_tokens": trace.prompt, "output_tokens": trace.output}
    return {"rate": rate, **{name: round(float(values.mean())) for name, values in lengths.items() if len(values)}}


def class_targets(
    config_maps: Mapping[Key, Mapping[str, str]], namespace: str, home: str, name: str, key: str, model: str
) -> tuple[dict[str, float], str]:
    """The targets in ms that a service class has for the model, or why there are none."""
    settings = FleetSettings(controller_namespace=home)
    spec = SLOSpec("", "", 1, name, key, {}, {}, 1)
    found, note = ServiceClasses(config_maps, settings).resolve(namespace, spec, model)
    if found is None or note:
        return {}, note or f"service class {name}/{key} has no targets"
    return {field: value for field, value in (("ttft", found.ttft), ("itl", found.itl)) if value}, ""
