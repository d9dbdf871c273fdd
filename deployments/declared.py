"""prefect.yaml as data, and copies of it with other parameters for the autoscale deployment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from deployments.profile import PREFECT_FILE
from flows.parameters import AutoscaleParameters

AUTOSCALE = "autoscale"
RECONCILE = "reconcile"


def read(prefect_file: Path = PREFECT_FILE) -> dict[str, Any]:
    """The file's content."""
    content: dict[str, Any] = yaml.safe_load(prefect_file.read_text(encoding="utf-8"))
    return content


def deployment_names(prefect_file: Path = PREFECT_FILE) -> set[str]:
    """The names of the deployments the file declares."""
    return {str(deployment["name"]) for deployment in read(prefect_file)["deployments"]}


def write_with_parameters(changes: Mapping[str, Any], target: Path, prefect_file: Path = PREFECT_FILE) -> None:
    """Write a copy of the file whose autoscale deployments have ``changes`` merged into their parameters.

    The schedule follows the length of the shift, unless that is a single tick.
    Raises ``pydantic.ValidationError`` for parameters that do not fit.
    """
    content = read(prefect_file)
    for deployment in content["deployments"]:
        if not deployment["name"].startswith(AUTOSCALE):
            continue
        parameters = _merged(deployment["parameters"], changes)
        if deployment["name"] == AUTOSCALE:
            shift = AutoscaleParameters.model_validate(parameters).shift_seconds
            for schedule in deployment["schedules"] if shift else []:
                schedule["interval"] = shift
        else:
            # One tick stays one tick.
            parameters["shift_seconds"] = 0
            AutoscaleParameters.model_validate(parameters)
        deployment["parameters"] = parameters
    target.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in changes.items():
        before = result.get(key)
        result[key] = _merged(before, value) if isinstance(before, dict) and isinstance(value, Mapping) else value
    return result
