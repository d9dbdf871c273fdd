"""The policies: the real decision code between ticks, the HPA's algorithm, KEDA's zero, the command line."""

from __future__ import annotations

import itertools
import textwrap
from pathlib import Path

import pytest
from decisions import told
from replay_fleets import KEY, poisson, spec, trace_of

from modelyard.autoscaling.configuration.settings import Compatibility, FleetSettings, Mode
from modelyard.autoscaling.decisions.decision import TickDecision
from modelyard.autoscaling.fleet.fleet import Fleet
from modelyard.autoscaling.offline.fleet import fleet_from_files
from modelyard.autoscaling.offline.manifests import Manifest, read_manifests
from modelyard.autoscaling.offline.snapshot import Snapshot
from modelyard.autoscaling.pipeline.decide import decide
from modelyard.replay.backtest.simulate import simulate
from modelyard.replay.policies.base import Fixed, merge_patch
from modelyard.replay.policies.horizontal import Horizontal, HorizontalBehaviour, HPAPolicy, KEDAPolicy
from modelyard.replay.policies.modelyard import ORIGIN, ModelyardPolicy
from modelyard.replay.policies.parse import PolicyInputError, make, split
from modelyard.replay.settings import SimulationSettings
from modelyard.replay.simulation.variants import VariantInputError, VariantSpec, variants_of

MANIFESTS = """
apiVersion: llmd.ai/v1alpha1
kind: VariantAutoscaling
metadata: {name: llama, namespace: chat, labels: {inference.optimization/acceleratorName: H100}}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: llama}
  modelID: llama
  variantCost: "40.0"
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: llama, namespace: chat}
spec:
  replicas: 1
  selector: {matchLabels: {app: llama}}
  template:
    metadata: {labels: {app: llama}}
    spec:
      terminationGracePeriodSeconds: 45
      containers:
        - name: engine
          image: example.com/engine
          args: ["--model", "llama", "--max-num-seqs", "24", "--kv-cache-tokens=30000", "--startup-delay", "40"]
          resources: {limits: {nvidia.com/gpu: "2"}}
"""


def manifests(folder: Path, text: str = MANIFESTS) -> list[Manifest]:
    path = folder / "m.yaml"
    path.write_text(textwrap.dedent(text))
    return read_manifests([path])


def variants(found: list[Manifest], **options: object) -> list[VariantSpec]:
    return variants_of(fleet_from_files(found, Snapshot(), 0.0), found, **options)  # type: ignore[arg-type]


def test_a_variant_is_taken_from_its_manifests(tmp_path: Path) -> None:
    (one,) = variants(manifests(tmp_path))
    assert (one.key, one.model, one.initial, one.cost, one.gpus) == (KEY, "llama", 1, 40.0, 2)
    assert (one.startup, one.grace) == (40.0, 45.0)
    assert (one.engine.max_num_seqs, one.engine.kv_cache_tokens, one.engine.alpha) == (24, 30_000, 7.0)
    assert one.engine.context_limit == 30_000
    (other,) = variants(manifests(tmp_path), profile="l40s", engine={"alpha": 9.5, "max_num_seqs": 12.0})
    assert (other.engine.alpha, other.engine.max_num_seqs) == (9.5, 12)
    assert other.engine.beta == 0.18


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("name: llama}\n  modelID", "name: gone}\n  modelID"), "Deployment chat/gone is in none of the files"),
        (('"--max-num-seqs", "24"', '"--max-num-seqs", "many"'), "max_num_seqs is not a number: 'many'"),
        (('"--startup-delay", "40"', '"--profile", "x9"'), "no engine profile 'x9'; choose one of a100"),
        (("--kv-cache-tokens=30000", "--kv-cache-tokens=3"), "do not go together: kv_cache_tokens"),
    ],
)
def test_manifests_that_cannot_be_simulated(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    text = MANIFESTS.replace(*change)
    assert text != MANIFESTS
    with pytest.raises(VariantInputError, match=message):
        variants(manifests(tmp_path, text))


def test_every_decision_is_what_decide_says_and_is_kept_as_the_cluster_would(tmp_path: Path) -> None:
    seen: list[tuple[Fleet, TickDecision]] = []
    found = manifests(tmp_path)
    settings = FleetSettings(scale_down_delay=60)
    policy = ModelyardPolicy(found, settings, on_decision=lambda fleet, decision: seen.append((fleet, decision)))
    run = simulate(poisson(12, 900, prompt=800, output=200), variants(found), policy)
    assert len(seen) >= 60
    assert any(action.after > action.before for action in run.actions)
    for fleet, decision in seen:
        assert decide(fleet, settings) == decision
    for (fleet, decision), (following, _) in itertools.pairwise(seen):
        (variant,), (record,) = following.variants, told(decision)
        assert variant.status_replicas == record.target.replicas
        assert variant.memory.model_copy(update={"hidden": record.memory.hidden}) == record.memory
        assert {c.type: c.status for c in variant.conditions} == {c.type: c.status for c in record.conditions}
        assert following.now - fleet.now == settings.tick
        assert fleet.variants[0].last_run is None or fleet.variants[0].last_run <= fleet.now
    # What was written is what was done, a second later.
    writes = [
        (fleet.now - ORIGIN + 1, record.writes.scale)
        for fleet, d in seen
        for record in d.records
        if record.writes.scale
    ]
    assert [(a.at, a.after) for a in run.actions] == [w for w in writes if w[0] <= run.actions[-1].at]


HPA = """
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: llama, namespace: chat}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: llama}
  minReplicas: 1
  maxReplicas: 3
"""


def test_a_variant_with_an_hpa_is_moved_by_the_hpa(tmp_path: Path) -> None:
    seen: list[TickDecision] = []
    found = manifests(tmp_path, MANIFESTS + HPA)
    policy = ModelyardPolicy(found, on_decision=lambda _, decision: seen.append(decision))
    run = simulate(poisson(12, 600, prompt=800, output=200), variants(found), policy)
    assert all(record.writes.mode is Mode.SIGNAL and record.writes.scale is None for d in seen for record in d.records)
    wanted = {record.target.replicas for d in seen for record in d.records}
    assert max(number or 0 for number in wanted) > 1
    assert [action.after for action in run.actions][-1] > 1
    assert all(1 <= action.after <= 3 for action in run.actions)


def test_the_fleet_of_a_tick_is_what_the_cluster_would_show(tmp_path: Path) -> None:
    found = manifests(tmp_path)
    pictures: list[Fleet] = []
    policy = ModelyardPolicy(found, on_decision=lambda fleet, _: pictures.append(fleet))
    run = simulate(poisson(12, 600, prompt=800, output=200), variants(found), policy)
    starting = [fleet for fleet in pictures if any(pod.ready_since is None for pod in fleet.pods)]
    assert starting, "some pods were starting when a decision was made"
    for fleet in pictures:
        (workload,) = fleet.workloads.values()
        live = [pod for pod in fleet.pods if not pod.deleting]
        assert workload.status_replicas == len(live) == workload.spec_replicas
        assert workload.ready == sum(pod.ready for pod in live)
        assert all(pod.created == int(pod.created) <= fleet.now for pod in fleet.pods)
    assert run.problems == ()


def test_published_mode_is_decided_as_documented(tmp_path: Path) -> None:
    found = manifests(tmp_path)
    policy = make(split("published")[0], found, FleetSettings())
    assert isinstance(policy, ModelyardPolicy)
    assert policy.settings.compatibility is Compatibility.PUBLISHED


def test_a_merge_patch() -> None:
    target = {"a": {"b": 1, "c": [1]}, "d": 2}
    assert merge_patch(target, {"a": {"b": None, "c": [2], "e": {"f": None}}, "d": {"g": 1}}) == {
        "a": {"c": [2], "e": {}},
        "d": {"g": 1},
    }
    assert target == {"a": {"b": 1, "c": [1]}, "d": 2}


def pods(*values: float) -> dict[str, float]:
    return {f"p{number}": value for number, value in enumerate(values)}


@pytest.mark.parametrize(
    ("current", "values", "ready", "expected"),
    [
        (2, pods(20, 20), 2, 4),
        (2, pods(10.9, 10.9), 2, 2),
        (2, pods(11.1, 11.1), 2, 3),
        (4, pods(5, 5, 5, 5), 4, 2),
        (4, pods(9.1, 9.1, 9.1, 9.1), 4, 4),
        (3, {}, 3, 3),
        # One pod without a value counts at the target when shrinking: (5 + 5 + 10) / 3 of 10 on 3 pods is 2.
        (3, pods(5, 5), 3, 2),
        # When growing it counts as idle: 40 over 3 pods is 13.3, so 4.
        (3, pods(20, 20), 3, 4),
        # A pod that is not ready yet holds growth back: 15 over 2 pods is within the tolerance or below.
        (2, pods(15), 1, 2),
        (1, pods(200), 1, 5),
    ],
)
def test_the_hpa_algorithm(current: int, values: dict[str, float], ready: int, expected: int) -> None:
    scaler = Horizontal(HorizontalBehaviour(down_window=0), 1, 100)
    assert scaler.pods(0.0, current, values, ready, 10.0) == expected


def test_growth_is_limited_to_the_larger_of_double_and_four_pods_in_15_seconds() -> None:
    scaler = Horizontal(HorizontalBehaviour(), 1, 1000)
    assert scaler.external(0, 2, 10_000, 10) == 6
    assert scaler.external(5, 6, 10_000, 10) == 6, "the four pods of five seconds ago count"
    assert scaler.external(15, 6, 10_000, 10) == 12
    assert scaler.external(30, 12, 10_000, 10) == 24
    assert Horizontal(HorizontalBehaviour(), 1, 9).external(0, 8, 10_000, 10) == 9


def test_shrinking_takes_the_highest_recommendation_of_five_minutes() -> None:
    scaler = Horizontal(HorizontalBehaviour(), 1, 100)
    assert scaler.external(0, 4, 100, 10) == 8
    assert scaler.external(15, 10, 20, 10) == 10
    assert scaler.external(299, 10, 20, 10) == 10
    assert scaler.external(301, 10, 50, 10) == 5
    assert scaler.external(311, 5, 20, 10) == 5, "a recommendation of 5 is ten seconds old"
    assert scaler.external(602, 5, 20, 10) == 2


def test_the_first_look_counts_as_a_recommendation_to_stay() -> None:
    scaler = Horizontal(HorizontalBehaviour(), 1, 100)
    assert scaler.external(0, 5, 10, 10) == 5
    assert scaler.external(301, 5, 10, 10) == 1


QUICK = SimulationSettings(pre_roll=60)


def test_an_hpa_grows_under_load_and_shrinks_after() -> None:
    variant = spec(initial=1, startup=20)
    busy = poisson(25, 300, seed=1)
    quiet = poisson(0.2, 900, seed=2)
    rows = [
        *zip(busy.at.tolist(), busy.prompt.tolist(), busy.output.tolist(), strict=True),
        *zip((300 + quiet.at).tolist(), quiet.prompt.tolist(), quiet.output.tolist(), strict=True),
    ]
    whole = trace_of(rows, 1200.0)
    run = simulate(whole, [variant], HPAPolicy("queue", 2, 1, 6), QUICK)
    assert max(action.after for action in run.actions) > 1
    assert run.actions[-1].after == 1
    assert all(1 <= action.after <= 6 for action in run.actions)


def test_keda_goes_to_zero_after_its_cooldown_and_back() -> None:
    variant = spec(initial=1, startup=20)
    traffic = trace_of([(0.0, 50, 20), (1.0, 50, 20), (600.0, 50, 20)], 900.0)
    run = simulate(traffic, [variant], KEDAPolicy("running", 5, cooldown=120), QUICK)
    assert [action.after for action in run.actions] == [0, 1, 0]
    down, up, _ = run.actions
    assert 120 <= down.at <= 160
    assert 600 < up.at <= 616
    assert run.results.first[2] == pytest.approx(up.at + 20, abs=0.1)
    assert run.results.answered.all()


def test_fixed_replicas_are_there_from_the_start() -> None:
    run = simulate(poisson(1, 60), [spec(initial=1)], Fixed(3), QUICK)
    assert run.replica_seconds(KEY) == pytest.approx(180)
    assert run.policy == "fixed:3"


def test_policies_are_split_at_commas_that_begin_one() -> None:
    found = split("default,hpa:queue=2,max=9,fixed:3, keda:running=20 , clairvoyant,default:tick=30,scale_to_zero=true")
    assert [str(text) for text in found] == [
        "default",
        "hpa:queue=2,max=9",
        "fixed:3",
        "keda:running=20",
        "clairvoyant",
        "default:tick=30,scale_to_zero=true",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "nothing given"),
        ("magic", "--policy magic: unknown; write default"),
        ("hpa", "name one metric"),
        ("hpa:queue=2,kv=0.5", "name one metric"),
        ("hpa:queue=0", "queue must be a number > 0"),
        ("hpa:queue=x", "hpa:queue=x"),
        ("hpa:queue=1,min=5,max=2", "min .5. must be between 0 and max .2."),
        ("hpa:speed=1", "unknown: speed"),
        ("fixed:-1", "replicas must be >= 0"),
        ("fixed:many", "fixed:many"),
        ("default:scale_down_dely=1", "unknown: scale_down_dely"),
        ("default:scale_down_delay=-1", "scale_down_delay: Input should be greater than or equal to 0"),
        ("default:3", "'3' is no NAME=VALUE"),
    ],
)
def test_policies_that_cannot_be_read(tmp_path: Path, text: str, message: str) -> None:
    found = manifests(tmp_path)
    with pytest.raises(PolicyInputError, match=message):
        _ = [make(part, found, FleetSettings()) for part in split(text)]


def test_each_simulation_gets_a_policy_of_its_own(tmp_path: Path) -> None:
    found, text = manifests(tmp_path), split("default")[0]
    assert make(text, found, FleetSettings()) is not make(text, found, FleetSettings())
