"""A profile that was fitted to a benchmark holds the target: by the engine that its annotation tells of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, strategies as st
from replay_fleets import poisson

from modelyard.autoscaling.fleet.provenance import PROVENANCE, engine_of, provenance
from modelyard.autoscaling.reading import observe
from modelyard.autoscaling.sizing.fit import Point
from modelyard.autoscaling.variants.profile import Profile
from modelyard.benchmarks.measuring.profiles import ProfileKey, library_patch, patch, read_library
from modelyard.engine.config import EngineConfig
from modelyard.objects import Key
from modelyard.profiles.fitting.closed_loop import serve
from modelyard.profiles.fitting.engine_fit import fit_engine, sizing_profile
from modelyard.replay.backtest.report import summarize
from modelyard.replay.backtest.scenario import read_fleet
from modelyard.replay.backtest.simulate import simulate
from modelyard.replay.policies.modelyard import ModelyardPolicy
from modelyard.replay.settings import SimulationSettings
from modelyard.traffic.traces.latency import SLO

SPEED = {"alpha": 22.6, "beta": 0.18, "gamma": 25.0, "delta": 0.105}
PROMPT, OUTPUT = 1200, 200
ENGINES_OWN = {
    "metadata": {"annotations": {}},
    "spec": {
        "variantProfile": {
            "perfParms": {
                "decodeParms": {name: str(SPEED[name]) for name in ("alpha", "beta")},
                "prefillParms": {name: str(SPEED[name]) for name in ("gamma", "delta")},
            },
            "maxBatchSize": 64,
        }
    },
}
CLASS = "name: chat\npriority: 1\ndata: [{model: m, slo-tpot: 60, slo-ttft: 2000}]\n"


@pytest.fixture(scope="module")
def body() -> dict[str, Any]:
    """The patch of ``profile fit`` by a benchmark of the engine with prompts of two lengths."""
    engine, points = EngineConfig(**SPEED, max_num_seqs=64, kv_cache_tokens=180_000, jitter=0.05), []
    for concurrency, prompt in ((1, 400), (16, 1600), (32, 1600), (64, 400)):
        about = Point(concurrency, prompt, OUTPUT, 1, 1, requests=8 * concurrency, prompt_spread=prompt / 4)
        ttft, itl = np.mean([one[:2] for one in serve(engine, about, seed=5)], axis=0)
        points.append(about._replace(ttft=float(ttft), itl=float(itl)))
    found = fit_engine(points)
    return patch(sizing_profile(found, PROMPT, OUTPUT), "shop/speed", 64, engine=found)


def variant(body: dict[str, Any], **annotations: str) -> dict[str, Any]:
    spec = {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "fleet"}, "modelID": "m"}
    spec |= {"variantID": "m-L40S-1", "accelerator": "L40S", "acceleratorCount": 1, **body["spec"]}
    spec |= {"sloClassRef": {"name": "service-classes-config", "key": "m.yaml"}}
    metadata = {"name": "fleet", "namespace": "chat", "annotations": body["metadata"]["annotations"] | annotations}
    return {"apiVersion": "llmd.ai/v1alpha1", "kind": "VariantAutoscaling", "metadata": metadata, "spec": spec}


def attained(folder: Path, scaled: dict[str, Any]) -> tuple[float, float]:
    """The share within 2 s and 60 ms of steady traffic, the first quarter of an hour left out, and replica-hours."""
    labels = {"app": "fleet"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "engine", "args": ["--model", "m"]}]}}
    deployment = {
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "fleet", "namespace": "chat"},
        "spec": {"replicas": 8, "selector": {"matchLabels": labels}, "template": template},
    }  # fmt: skip
    home = {"namespace": "workload-variant-autoscaler-system"}
    maps = [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **home}, "data": data}
        for name, data in (
            ("service-classes-config", {"m.yaml": CLASS}),
            ("accelerator-unit-costs", {"L40S": '{"device": "l40s", "cost": "12"}'}),
        )
    ]
    file = folder / "fleet.yaml"
    file.write_text(yaml.safe_dump_all([deployment, scaled, *maps]))
    fleet = read_fleet([file], startup=60.0, engine=SPEED | {"kv_cache_tokens": 180_000})
    run = simulate(
        poisson(3.0, 2700, prompt=PROMPT, output=OUTPUT),
        fleet.variants,
        ModelyardPolicy(fleet.manifests, fleet.fleet_settings),
        SimulationSettings(seed=1, warm_up=900),
    )
    found = summarize(run, SLO(ttft=2.0, itl=0.06))
    return found.attainment, found.replica_hours


def test_the_engine_behind_the_profile_is_found_and_read(body: dict[str, Any]) -> None:
    slo = observe.variant(variant(body)).slo
    assert slo is not None
    engine = slo.engine
    assert engine is not None
    assert engine[:2] == pytest.approx((SPEED["alpha"], SPEED["beta"]), rel=0.1)
    assert engine[3] == pytest.approx(SPEED["delta"], rel=0.05)
    lines = body["spec"]["variantProfile"]["perfParms"]
    assert float(lines["decodeParms"]["beta"]) > 2 * SPEED["beta"], "what prompts delay decoding is in β"


@pytest.mark.parametrize("told", [True, False])
def test_the_share_is_held_by_a_profile_of_lines(body: dict[str, Any], tmp_path: Path, told: bool) -> None:
    """Where nothing is told of the engine, by what the lines say of it. Its prompts take 35 times what δ says."""
    assert float(body["spec"]["variantProfile"]["perfParms"]["prefillParms"]["delta"]) < 0.01
    share, hours = attained(tmp_path, variant(body) if told else variant(body, **{PROVENANCE: "{}"}))
    assert share > 0.99
    assert hours < 1.3 * attained(tmp_path, variant(ENGINES_OWN))[1]


@pytest.mark.parametrize("own", [tuple(SPEED.values()), (7.0, 0.045, 15.0, 0.028), (7.0, 0.045, 40.0, 0.028)])
def test_an_engines_own_numbers_are_left_as_they_are(own: tuple[float, float, float, float]) -> None:
    assert Profile(*own, 64).behind(1200, 200) == own


@given(st.tuples(*(st.floats(0, 100) for _ in range(4))), st.floats(0, 1e5), st.floats(0, 1e4), st.integers(1, 512))
def test_what_is_behind_any_lines_is_an_engine(
    lines: tuple[float, float, float, float], prompt: float, output: float, batch: int
) -> None:
    alpha, beta, gamma, delta = lines
    profile = Profile(alpha + 0.001, beta, gamma, delta, batch)
    found = profile.behind(prompt, output)
    assert all(0 <= value < float("inf") for value in found)
    assert found[0] == profile.alpha
    assert found[1] <= beta
    assert found[3] >= delta


def test_a_profile_of_the_library_has_its_engine_along(body: dict[str, Any]) -> None:
    key = ProfileKey("m", "L40S", 1, "")
    found, _ = read_library(Key("n", "modelyard-profiles"), library_patch(key, body)["data"])
    assert observe.variant(variant(found[key.name].patch())).slo == observe.variant(variant(body)).slo


def test_numbers_that_somebody_wrote_since_are_meant(body: dict[str, Any]) -> None:
    changed = variant(body)
    changed["spec"]["variantProfile"]["perfParms"]["decodeParms"] = {"alpha": "7", "beta": "0.04"}
    found = observe.variant(changed).slo
    assert found is not None
    assert found.engine is None


@pytest.mark.parametrize(
    "engine",
    [
        None, [], "fast", {}, {"alpha": 1}, {"alpha": 0}, {"alpha": -1}, {"alpha": True}, {"alpha": "7"},
        {"delta": 1e300}, {"delta": float("nan")}, {"gamma": float("inf")}, {"beta": None}, {"beta": {}},
    ],
)  # fmt: skip
def test_an_engine_that_cannot_be_true_is_none(body: dict[str, Any], engine: Any) -> None:
    told = provenance(body)
    whole = told["engine"] | engine if isinstance(engine, dict) and engine and engine != {"alpha": 1} else engine
    text = json.dumps(told | {"engine": whole})
    assert engine_of(json.loads(text), told["profile"]) is None
    assert engine_of(told, told["profile"]) is not None
    assert observe.variant(variant(body, **{PROVENANCE: text})).problem is None


def test_a_first_token_that_takes_long_for_another_reason_is_no_endless_prompt() -> None:
    alpha, beta, gamma, delta = Profile(20.0, 0.41, 200.0, 0.04, 64).behind(100, 200)
    assert delta <= 0.2 == alpha / 100
    assert beta <= 0.41
    assert gamma + alpha + delta * 100 == pytest.approx(200 + 0.04 * 100), "what an idle engine's first token takes"
