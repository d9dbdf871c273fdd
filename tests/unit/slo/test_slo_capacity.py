"""The GPU limiter over groups in SLO form: priorities, other accelerators, and never above what there is."""

from __future__ import annotations

import pytest
from builders import SATURATION, condition, gpu_node
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from slo_builders import H100, INSTANT, L40S, SLO, premium, run_slo, targets

LIMITED = {SATURATION: {"default": "enableLimiter: true"}}
GOLD = premium(itl=30, model="gold", name="Gold")
SILVER = premium(itl=30, model="silver", name="Silver", priority=5)
CLASSES = {"gold": GOLD, "premium.yaml": GOLD, "silver": SILVER}


def both(model: str, h100: int = 0, l40s: int = 0, **serving) -> tuple[SLO, SLO]:
    """One model on two accelerators; pods are placed on nodes of their own kind."""
    common = {"model": model, "class_key": model}
    return (
        SLO(f"{model}-h", h100, H100, serving={"pod": {"node": "h", "gpus": 1}, **serving}, **common),
        SLO(f"{model}-l", l40s, L40S, "L40S", batch=48, serving={"pod": {"node": "l", "gpus": 1}}, **common),
    )


def nodes(h100: int, l40s: int):
    return (gpu_node("h", h100), gpu_node("l", l40s, "NVIDIA-L40S"))


def run_limited(*variants: SLO, gpus: tuple[int, int], load: float, **fields):
    return run_slo(
        *variants, load=load, nodes=nodes(*gpus), config_maps=LIMITED, classes=CLASSES, settings=INSTANT, **fields
    )


def test_enough_for_everybody_changes_nothing():
    found = run_limited(*both("gold", 1), *both("silver", 1), gpus=(16, 16), load=40.0)
    assert targets(found) == {"gold-h": 1, "gold-l": 2, "silver-h": 1, "silver-l": 2}
    assert {condition(r, "CapacityLimited") for r in found.values()} == {("False", "CapacitySufficient")}


def test_the_important_class_gets_what_is_free():
    found = run_limited(*both("gold", 1), *both("silver", 1), gpus=(3, 0), load=80.0)
    assert targets(found) == {"gold-h": 2, "gold-l": 0, "silver-h": 1, "silver-l": 0}
    for name in ("gold-h", "silver-h"):
        assert condition(found[name], "CapacityLimited") == ("True", "AcceleratorsExhausted")
        assert found[name].limited_by == "gpu-limiter"
    assert "56.65 of 80 requests/s" in found["gold-h"].message


def test_the_important_class_takes_back_what_others_hold_beyond_their_last_replica():
    found = run_limited(*both("gold", 1), *both("silver", 3), gpus=(4, 0), load=80.0)
    assert found["silver-h"].target == 1
    assert found["gold-h"].target == 1  # its new replicas are granted when the others have let go
    freed = run_limited(*both("gold", 1), *both("silver", 1), gpus=(4, 0), load=80.0)
    assert (freed["gold-h"].target, freed["silver-h"].target) == (3, 1)


def test_what_the_cheap_accelerator_lacks_the_other_gives():
    found = run_limited(*both("gold", 1), gpus=(4, 1), load=40.0)
    assert found["gold-h"].target >= 2
    assert found["gold-l"].target <= 1


def test_capacity_below_what_already_runs_is_no_error():
    found = run_limited(*both("gold", 4), gpus=(2, 0), load=100.0)
    assert found["gold-h"].decided


def test_without_the_limiter_nothing_is_said_about_capacity():
    found = run_slo(*both("gold", 1), load=400.0, classes=CLASSES, nodes=nodes(1, 0))
    assert "CapacityLimited" not in {c.type for c in found["gold-h"].conditions}


@examples(max_examples=25, deadline=None)
@given(
    gpus=st.tuples(st.integers(0, 6), st.integers(0, 6)),
    load=st.floats(0.5, 120),
    running=st.tuples(st.integers(0, 3), st.integers(0, 3)),
)
def test_never_above_capacity_beyond_what_runs(gpus, load, running):
    gold, silver = both("gold", running[0] or 1), both("silver", running[1] or 1)
    found = run_limited(*gold, *silver, gpus=gpus, load=load)
    for kind, total in zip(("h", "l"), gpus, strict=True):
        now = sum(r.current or 0 for name, r in found.items() if name.endswith(kind))
        asked = sum(r.target or 0 for name, r in found.items() if name.endswith(kind))
        assert asked <= max(total, now)


@pytest.mark.parametrize("gpus", [(0, 0), (1, 0)])
def test_no_gpu_at_all(gpus):
    found = run_limited(*both("gold", 1), gpus=gpus, load=400.0)
    assert found["gold-h"].target in (0, 1)
    assert found["gold-l"].target == 0
