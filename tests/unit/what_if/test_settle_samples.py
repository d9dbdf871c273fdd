"""The shipped samples under pressure come to rest: what the allocation gives up is not asked back a tick later."""

from __future__ import annotations

from pathlib import Path

import pytest

from modelyard.autoscaling.configuration.settings import FleetSettings
from modelyard.autoscaling.fleet.fleet import Fleet
from modelyard.autoscaling.offline.fleet import fleet_from_files
from modelyard.autoscaling.offline.manifests import read_manifests
from modelyard.autoscaling.offline.snapshot import read_snapshot
from modelyard.autoscaling.what_if import imagine, parse, settle
from modelyard.autoscaling.what_if.settle import End

SAMPLES = Path(__file__).parents[3] / "config" / "samples" / "plan"


def sample(name: str) -> Fleet:
    folder = SAMPLES / name
    metrics = folder / "metrics.yaml"
    return fleet_from_files(read_manifests([folder], [metrics]), read_snapshot(metrics), 1_700_000_000.0)


@pytest.mark.parametrize("load", ["1x", "2x", "3x", "5x"])
@pytest.mark.parametrize("capacity", [["H100=4", "A100=2"], ["H100=1", "A100=3"], ["H100=2", "A100=0"]])
def test_scarce_accelerators_come_to_rest(load: str, capacity: list[str]) -> None:
    asked = imagine(sample("slo"), FleetSettings(), parse(load=[load], capacity=capacity))
    assert settle(asked.fleet, asked.settings).end is not End.MOVING
