"""docs/autoscaling.md says what the code says: every plan, status and table in it is made again and compared."""

from __future__ import annotations

import doctest
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from one_row import size_one
from policy_examples import BEGIN, SAMPLES, Example, effective, manifests, status_of
from typer.testing import CliRunner

from modelyard.autoscaling.bindings.shares import Candidate, exact_shares, greedy_shares
from modelyard.autoscaling.configuration.settings import FleetSettings
from modelyard.autoscaling.reading.bindings.objects import binding
from modelyard.autoscaling.sizing.within import NEAREST
from modelyard.autoscaling.variants.arbitration import arbitrate
from modelyard.autoscaling.variants.saturation_config import BUILT_IN
from modelyard.cli.main import app
from modelyard.resources import KINDS
from modelyard.resources.policies import AutoscalingPolicySpec

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "autoscaling.md").read_text(encoding="utf-8")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
CAPACITY = {"modelyard.dev/optimizer": "exact", "modelyard.dev/capacity": "llama-a100=1,llama-h100=2.5"}


def squeezed(text: str) -> str:
    return " ".join(text.split())


def example(name: str) -> str:
    """What follows a marker of the page, up to an empty line."""
    _, found, rest = PAGE.partition(f"<!-- example: {name} -->\n")
    assert found, name
    return rest.partition("\n\n")[0]


def table(name: str) -> list[list[str]]:
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in example(name).splitlines()]
    return [rows[0], *rows[2:]]


def numbers(name: str) -> list[list[int]]:
    return [[int(cell) for cell in row[1:]] for row in table(name)]


def fenced(name: str) -> dict[str, Any]:
    found = FENCE.match(example(name))
    assert found is not None
    status: dict[str, Any] = yaml.safe_load(found[2])["status"]
    return status


PLANS = [text for language, text in FENCE.findall(PAGE) if language == "console"]


@pytest.mark.parametrize("text", PLANS, ids=lambda text: text.splitlines()[0][-40:])
def test_the_plans_are_what_the_command_prints(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    command, _, shown = text.partition("\n")
    arguments = command.removeprefix("$ modelyard ").split()
    printed = CliRunner().invoke(app, arguments)
    assert printed.exit_code == 0, printed.output
    rest = squeezed(printed.output)
    for part in shown.split("...\n"):
        found = squeezed(part)
        assert found in rest, found
        rest = rest[rest.index(found) + len(found) :]


def test_there_is_a_plan_of_every_sample_for_it() -> None:
    samples = {path.parent.name for path in SAMPLES.glob("*/metrics.yaml")}
    assert samples == {found for text in PLANS for found in re.findall(r"autoscaling/(\w+)/metrics", text)}


def test_the_python_in_it_runs() -> None:
    parser = doctest.DocTestParser()
    blocks = [text for language, text in FENCE.findall(PAGE) if language == "pycon"]
    assert blocks
    for text in blocks:
        failed, tried = doctest.DocTestRunner().run(parser.get_doctest(text, {}, "autoscaling.md", None, None))
        assert tried
        assert not failed


def test_the_manifests_in_it_are_in_the_samples_or_valid_themselves() -> None:
    by_kind = {kind.kind: kind for kind in KINDS.values()}
    seen = 0
    for _, text in ((language, text) for language, text in FENCE.findall(PAGE) if language == "yaml"):
        for document in yaml.safe_load_all(text):
            if document.get("kind") in by_kind:
                by_kind[document["kind"]].parse(document)
                seen += 1
    assert seen == 4
    for path in SAMPLES.rglob("*.yaml"):
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            if document.get("kind") in by_kind:
                by_kind[document["kind"]].parse(document)


def test_the_defaults_named_in_it() -> None:
    named = re.findall(r"`(\w+)` \((\d[\d.]*)( %)?(?: s)?\)|(\d[\d.]*)( %)? \(`(\w+)`\)", squeezed(PAGE))
    found = {(first or second): float(a or b) / (100 if p or q else 1) for first, a, p, b, q, second in named}
    assert {"kvCacheThreshold", "load_window", "scale_down_margin", "startup_default", "transition_penalty"} <= set(
        found
    )
    tolerance = AutoscalingPolicySpec.model_fields["tolerance_percent"].default
    defaults = {**FleetSettings().model_dump(), **BUILT_IN, "tolerancePercent": tolerance}
    assert found == {name: defaults[name] for name in found}
    assert f"{NEAREST:g} times" in PAGE


def test_the_percentiles() -> None:
    for row, percentile in zip(table("percentiles")[1:], (None, 95, 99), strict=True):
        assert str(percentile or "unset") in row[0]
        h100 = size_one(7.5, 0.05, 12, 0.002, 96, 512, 256, ttft=500, itl=30, percentile=percentile).rate
        l40s = size_one(19, 0.18, 40, 0.006, 48, 512, 256, ttft=500, itl=30, percentile=percentile).rate
        assert row[1:] == [f"{h100:.2f}", f"{l40s:.3f}"]


def includes(whole: Any, part: Any) -> bool:
    """Whether everything in ``part`` is in ``whole``; of lists, some element each."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(key in whole and includes(whole[key], part[key]) for key in part)
    if isinstance(part, list):
        return all(any(includes(one, item) for one in whole) for item in part)
    return bool(whole == part)


def test_the_status_of_the_binding() -> None:
    one = Example("policy")
    one.replicas["llama"] = 4
    status = status_of(one.decide(0, {"llama": [20, 20, 20]}, unready=1))
    assert includes(status, fenced("policy")), status


def test_the_status_of_the_policy() -> None:
    assert includes(effective(Example("policy")), fenced("defaults"))


@pytest.mark.parametrize(
    ("name", "policy", "start", "demands"),
    [
        ("up", "", 2, {0: 12}),
        ("down", "", 10, {0: 10, 30: 3}),
        ("panic", "behaviour.yaml", 2, {0: 16, 60: 3}),
    ],
)
def test_the_steps_in_time(name: str, policy: str, start: int, demands: dict[float, float]) -> None:
    seconds, replicas = numbers(name)
    one = Example("policy", policy)
    one.replicas["llama"] = start
    assert one.follow("llama", demands, 600) == dict(zip(seconds, replicas, strict=True))


def test_what_is_said_while_stabilizing() -> None:
    one = Example("policy")
    one.replicas["llama"] = 10
    one.follow("llama", {0: 10, 30: 3}, 300)
    (record,) = one.decide(315, {"llama": [3] * 10}).records
    assert record.why.reason == "Stabilizing"
    said = re.search(r"\*(the highest recommendation [^*]+)\*", PAGE)
    assert said is not None
    assert squeezed(said[1]) in record.why.message


@pytest.mark.parametrize("name", ["greedy", "exact"])
def test_the_shares(name: str) -> None:
    totals, *shares = numbers(name)
    for total, *expected in zip(totals, *shares, strict=True):
        candidates = [Candidate("llama-a100", 60, 1, 8, 0, 1.0), Candidate("llama-h100", 100, 0, 4, 0, 2.5)]
        found = greedy_shares(total, candidates) if name == "greedy" else exact_shares(total, candidates)
        assert found == expected, total


@pytest.mark.parametrize(("annotations", "shares"), [({}, (2, 2)), (CAPACITY, (2, 1))])
def test_the_optimizer_s_example(annotations: dict[str, str], shares: tuple[int, int]) -> None:
    one = Example("optimizer", **annotations)
    one.replicas = {"llama-a100": 2, "llama-h100": 0}
    one.decide(0, {"llama-a100": [20, 20]})
    assert tuple(one.replicas.values()) == shares


def test_the_binding_down_to_zero_says_what_the_sample_says() -> None:
    sample = manifests("policy/zero.yaml")["AutoscalingPolicyBinding"]
    spec = binding(sample)
    assert spec.view.problem is None
    assert spec.view.grace == 300
    assert set(spec.sources[""]) == {"vllm:num_requests_waiting"}
    annotations = yaml.safe_load(
        next(text for language, text in FENCE.findall(PAGE) if language == "yaml" and "scale-to-zero-grace" in text)
    )["metadata"]["annotations"]
    assert annotations == sample["metadata"]["annotations"]


def test_zero_and_back() -> None:
    one = Example("policy")
    one.spec = binding(manifests("policy/zero.yaml")["AutoscalingPolicyBinding"])
    one.replicas = {"llama": 1}
    reasons = {}
    for at in range(0, 361, 15):
        count = one.replicas["llama"]
        (record,) = one.decide(at, {"llama": [0.0] * count}, demand=0.0 if at else 1.0).records
        reasons[at] = record.why.reason
    assert reasons[300] == "Stabilizing"
    assert one.replicas == {"llama": 0}
    assert one.decide(375, {}, demand=None).records[0].why.reason == "AtZero"
    assert one.decide(390, {}, demand=3.0).records[0].why.reason == "WokenByDemand"
    assert one.replicas == {"llama": 1}
    assert BEGIN > 0


def test_the_tolerance() -> None:
    for waiting, *cells in table("tolerance")[1:]:
        for mode, cell in zip(("repaired", "published"), cells, strict=True):
            one = Example("policy", **{"modelyard.dev/compatibility": mode})
            one.replicas["llama"] = 5
            decision = one.decide(0, {"llama": [float(waiting)] * 5})
            told = re.search(r"asks for (\d+)|keeps (\d+)", decision.message)
            assert told is not None
            written = re.search(r"\d+", cell)
            assert written is not None
            assert written[0] in (told[1], told[2])


CURRENT, MORE, MOST, FEWER = 4, 6, 8, 2


def test_the_arbitration() -> None:
    found = [
        arbitrate(CURRENT, MORE, FEWER),
        arbitrate(CURRENT, CURRENT, FEWER, scale_down_safe=False),
        arbitrate(CURRENT, MORE, CURRENT),
        arbitrate(CURRENT, MORE, MOST),
        arbitrate(CURRENT, FEWER, MOST),
        arbitrate(CURRENT, CURRENT, FEWER, scale_down_safe=True),
        arbitrate(CURRENT, FEWER, CURRENT),
    ]
    meant = {"kept": CURRENT, "saturation's": MORE, "the larger": MOST}
    for row, result in zip(table("arbitration")[1:], found, strict=True):
        forecast = {"fewer": FEWER, "the same": CURRENT, "more": MOST}[row[1]]
        assert result.target == meant.get(row[2], forecast)
        assert result.overridden == ("vetoed" in row[3] or "blocked" in row[3]) if len(row) > 3 else True
