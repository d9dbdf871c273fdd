"""Accelerator names and the GPU limiter."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import MODEL, NOW, PUBLISHED, REPAIRED, Serving, gpu_node, make_fleet, one, records, run
from decisions import Told, told
from hypothesis import given, strategies as st

from modelyard.autoscaling.configuration.settings import FleetSettings
from modelyard.autoscaling.decisions.decision import Action
from modelyard.autoscaling.fleet.accelerators import published_short_name, short_name
from modelyard.autoscaling.pipeline.decide import decide
from modelyard.autoscaling.variants.pools import LIMITED_BY, Pools, pool_of_node
from modelyard.objects import Key, Node, OwnerRef, Pod
from modelyard.objects.selectors import parse_selector

LIMITER = {"default": "enableLimiter: true"}
FULL = [(0.95, 0)] * 4  # needs six
FIVE = {"annotations": {"modelyard.dev/min-replicas": "5"}}
DOCUMENTED = [
    ("NVIDIA-A100-PCIE-80GB", "A100"),
    ("NVIDIA-H100-SXM5-80GB", "H100"),
    ("NVIDIA-L40S-48GB", "L40S"),
    ("AMD-MI300X-192G", "MI300X"),
    ("Intel-Gaudi-2-96GB", "Gaudi-2"),
    ("nvidia-A100-PCIE-80GB", "A100"),
    ("A100", "A100"),
]


@pytest.mark.parametrize(("product", "name"), [*DOCUMENTED, ("Unknown-GPU-Model-123", "GPU")])
def test_published_short_name(product, name):
    assert published_short_name(product) == name


@pytest.mark.parametrize(
    ("product", "name"),
    [
        *DOCUMENTED,
        ("Gaudi-2", "Gaudi-2"),
        ("Intel-Gaudi3", "Gaudi-3"),
        ("NVIDIA-RTX-A6000", "RTX-A6000"),
        ("NVIDIA-GeForce-RTX-4090", "RTX-4090"),
        ("NVIDIA-RTX-6000-Ada-Generation", "RTX-6000-Ada"),
        ("NVIDIA-GeForce-GTX-1080-Ti", "GTX-1080-Ti"),
        ("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", "A100-MIG-1g.10gb"),
        ("nvidia-tesla-t4", "T4"),
        ("nvidia-h100-mega-80gb", "H100"),
        ("NVIDIA-GH200-480GB", "GH200"),
        ("NVIDIA-H200", "H200"),
        ("AMD_Instinct_MI300X_OAM", "MI300X"),
        ("h100", "H100"),
        ("Unknown-GPU-Model-123", "Unknown-GPU-Model-123"),
        ("Acme-X1-32GB", "Acme-X1"),
    ],
)
def test_short_name(product, name):
    assert short_name(product) == name


@given(
    st.lists(
        st.sampled_from(
            [
                "NVIDIA",
                "AMD",
                "Intel",
                "GeForce",
                "RTX",
                "GTX",
                "A100",
                "h100",
                "Gaudi",
                "Gaudi2",
                "2",
                "4090",
                "80GB",
                "PCIe",
                "SXM5",
                "MIG",
                "1g.10gb",
                "X1",
                "Ti",
                "Tesla",
            ]
        ),
        min_size=1,
    ).map("-".join)
    | st.text(max_size=30)
)
def test_short_name_is_idempotent(product):
    assert short_name(short_name(product)) == short_name(product)


@pytest.mark.parametrize(
    ("labels", "resource", "pool"),
    [
        ({"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}, "nvidia.com/gpu", "A100"),
        ({"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}, "nvidia.com/mig-1g.10gb", "A100-MIG-1g.10gb"),
        ({"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"}, "nvidia.com/gpu", "A100-MIG-1g.10gb"),
        ({"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"}, "amd.com/gpu", "MI300X"),
        ({"cloud.google.com/gke-accelerator": "nvidia-l4"}, "nvidia.com/gpu", "L4"),
        ({"nvidia.com/gpu.product": "NVIDIA-L4"}, "example.com/gpu", None),
        ({"nvidia.com/gpu.product": "NVIDIA-L4"}, "nvidia.com/gpu.shared", "L4-gpu.shared"),
        ({"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"}, "amd.com/cpx_nps4", "MI300X-cpx_nps4"),
        ({"gpu.intel.com/product": "Max_1550"}, "gpu.intel.com/i915", "Max_1550"),
        ({"cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice"}, "google.com/tpu", "tpu-v6e-slice"),
        ({"karpenter.k8s.aws/instance-accelerator-name": "trainium"}, "aws.amazon.com/neuron", "trainium"),
        (
            {"karpenter.k8s.aws/instance-accelerator-name": "trainium"},
            "aws.amazon.com/neuroncore",
            "trainium-neuroncore",
        ),
        ({"nvidia.com/gpu.product": "NVIDIA-L4"}, "nvidia.com/gpumem", None),
        ({}, "nvidia.com/gpu", None),
    ],
)
def test_pools(labels, resource, pool):
    assert pool_of_node(labels, resource) == pool


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        ("", True),
        ("zone=a", True),
        ("zone==a,pool=gpu", True),
        ("zone!=a", False),
        ("zone in (a, b),pool", True),
        ("zone notin (a,b)", False),
        ("!spot", True),
        ("spot", False),
        ("spot!=yes", True),
    ],
)
def test_label_selectors(selector, matches):
    assert parse_selector(selector)({"zone": "a", "pool": "gpu"}) is matches


def test_bad_label_selector():
    with pytest.raises(ValueError, match="'a b c' is not a label selector term"):
        parse_selector("x=y,a b c")


def limited(*serving, nodes, settings=REPAIRED, **fields) -> dict[str, Told]:
    return run(*serving, nodes=nodes, config=LIMITER, settings=settings, **fields)


def on_node(name, gpus, phase="Running", node="n1", **fields):
    return Pod(Key("else", name), name, None, NOW, NOW, phase, node=node, gpus=gpus, **fields)


def placed(serving, node="n1", **fields):
    """The same variant with its pods on a node, holding GPUs."""
    return replace(serving, pod={"node": node, "gpus": serving.gpus, **fields})


@pytest.mark.parametrize("settings", [PUBLISHED, REPAIRED])
class TestBoth:
    def test_off_by_default(self, settings):
        assert run(Serving(load=FULL), nodes=[], settings=settings)["v1"].target.action is Action.UP

    def test_room(self, settings):
        record = limited(placed(Serving(load=FULL)), nodes=[gpu_node("n1", 8)], settings=settings)["v1"]
        assert record.target.action is Action.UP
        assert record.why.limited_by is None
        assert "allocated" in next(s for s in record.why.steps if s.stage == "limiter").detail

    def test_no_room(self, settings):
        record = limited(placed(Serving(load=FULL)), nodes=[gpu_node("n1", 4)], settings=settings)["v1"]
        assert (record.target.replicas, record.why.limited_by, record.target.action) == (4, LIMITED_BY, Action.NONE)
        assert "limited to 4 by GPUs" in record.message

    def test_types_are_isolated(self, settings):
        nodes = [gpu_node("n1", 4), gpu_node("n2", 8, "NVIDIA-A100-SXM4-80GB")]
        assert limited(placed(Serving(load=FULL)), nodes=nodes, settings=settings)["v1"].target.replicas == 4

    def test_no_accelerator_no_gpu(self, settings):
        record = limited(Serving(load=FULL, accelerator=None), nodes=[gpu_node("n1", 64)], settings=settings)["v1"]
        assert (record.target.replicas, record.why.limited_by) == (4, LIMITED_BY)

    def test_failed_listing_passes_unlimited_and_says_so(self, settings):
        decision = decide(make_fleet(Serving(load=FULL), config=LIMITER, nodes_error="403 forbidden"), settings)
        (record,) = told(decision)
        assert record.target.action is Action.UP
        assert "403 forbidden" in record.why.message
        assert "targets are not limited" in decision.errors[0]
        assert [n.reason for n in record.notices] == ["LimiterUnavailable"]

    def test_every_decision_gets_a_step(self, settings):
        found = limited(Serving("up", FULL), Serving("calm", [(0.5, 0)] * 2, model="m2"), nodes=[], settings=settings)
        assert all(any(s.stage == "limiter" for s in r.why.steps) for r in found.values())

    def test_most_pressed_first_then_cheapest(self, settings):
        def served(name, kv, cost):
            return placed(Serving(name, [(kv, 0)] * 2, cost=cost, model=name))

        nodes = [gpu_node("n1", 7)]
        found = limited(served("b", 0.72, 1), served("a", 0.75, 9), served("c", 0.5, 1), nodes=nodes, settings=settings)
        assert (found["a"].target.replicas, found["b"].target.replicas, found["b"].why.limited_by) == (3, 2, LIMITED_BY)
        found = limited(served("b", 0.75, 1), served("a", 0.75, 9), served("c", 0.5, 1), nodes=nodes, settings=settings)
        assert (found["a"].target.replicas, found["b"].target.replicas) == (2, 3)

    @pytest.mark.parametrize("load", [FULL[:2], [(0.0, 0)] * 2])
    def test_a_minimum_lifts_nothing_over_the_limiter(self, settings, load):
        """Whether the model needs more or was about to go to zero: three GPUs are three replicas, not five."""
        s = placed(Serving(load=load, variant=FIVE))
        zero = {"default": "enable_scale_to_zero: true"}
        idle = {("chat", MODEL, 600): 0.0}
        record = limited(s, nodes=[gpu_node("n1", 3)], zero=zero, counts=idle, settings=settings)["v1"]
        assert (record.target.replicas, record.why.limited_by) == (3, LIMITED_BY)
        assert [step.stage for step in record.why.steps][-2:] == ["bounds", "limiter"]

    def test_a_minimum_of_what_is_woken_lifts_nothing_over_the_limiter(self, settings):
        s = Serving(current=0, ready=0, desired=0, variant=FIVE)
        waiting = {"gateway_queue": {("chat", MODEL): 3.0}}
        record = limited(s, nodes=[gpu_node("n1", 3)], signals=waiting, settings=settings)["v1"]
        assert (record.target.replicas, record.writes.scale, record.why.limited_by) == (3, 3, LIMITED_BY)


QUOTA = "{{type: quota, name: inference, quotas: {{{}}}}}"


def with_quotas(*entries) -> dict[str, str]:
    return {"default": f"limiters: [{', '.join(entries)}]"}


@pytest.mark.parametrize("settings", [PUBLISHED, REPAIRED])
class TestQuotas:
    """Repaired, four full replicas want six, published five."""

    def decided(self, settings, *entries, namespace="chat", **fields) -> Told:
        serving = placed(Serving(load=FULL, namespace=namespace))
        return run(serving, config=with_quotas(*entries), settings=settings, **fields)["v1"]

    def test_no_more_than_allowed_whatever_there_is(self, settings):
        record = self.decided(settings, QUOTA.format("H100: 4"), nodes_error="403 forbidden")
        assert (record.target.replicas, record.why.limited_by) == (4, "quota inference")
        assert "limited to 4 by quota inference (4 H100 allowed, 4 held)" in record.message
        assert record.notices == (), "quotas need no nodes"

    @pytest.mark.parametrize(
        ("caps", "grows"),
        [("H100: -1", True), ("NVIDIA-H100-SXM5-80GB: 9", True), ("L40S: 9", False), ("H100: 2", False), ("", False)],
        ids=["no limit", "the product's name", "not named", "held already", "nothing named"],
    )
    def test_caps(self, settings, caps, grows):
        record = self.decided(settings, QUOTA.format(caps))
        assert (record.target.action is Action.UP, record.why.limited_by is None) == (grows, grows)
        assert record.target.replicas >= 4, "a quota takes nothing away"

    @pytest.mark.parametrize(
        ("gpus", "allowed", "limited_by"), [(4, 9, LIMITED_BY), (9, 4, "quota inference"), (4, 4, "quota inference")]
    )
    def test_the_least_of_several_counts(self, settings, gpus, allowed, limited_by):
        entries = (QUOTA.format(f"H100: {allowed}"), "{type: gpu-inventory}", QUOTA.format("H100: 99"))
        record = self.decided(settings, *entries, nodes=[gpu_node("n1", gpus)])
        assert (record.target.replicas, record.why.limited_by) == (4, limited_by)

    def test_quotas_hold_without_nodes_too(self, settings):
        entries = (QUOTA.format("H100: 4"), "{type: gpu-inventory}")
        record = self.decided(settings, *entries, nodes_error="403 forbidden")
        assert (record.target.replicas, record.why.limited_by) == (4, "quota inference")
        assert [notice.reason for notice in record.notices] == ["LimiterUnavailable"]

    @pytest.mark.parametrize(
        ("namespace", "grows"), [("chat", False), ("search", True), ("else", False), ("platform", True)]
    )
    def test_by_namespace(self, settings, namespace, grows):
        caps = "{chat: {H100: 4}, search: {H100: 9}, default: {H100: 4}}"
        entry = f"{{type: quota, name: teams, scope: namespace, namespaceQuotas: {caps}, exclude: [platform]}}"
        record = self.decided(settings, entry, namespace=namespace)
        assert (record.target.action is Action.UP, record.why.limited_by is None) == (grows, grows)

    def test_all_namespaces_together_and_whole_replicas(self, settings):
        quota = with_quotas(QUOTA.format("H100: 17"))
        two = [Serving(name, FULL[:2], namespace=name, gpus=4) for name in ("a", "b")]
        found = run(*two, config=quota, settings=settings)
        assert [record.target.replicas for record in found.values()] == [2, 2]
        found = run(*two, config=with_quotas(QUOTA.format("H100: 23")), settings=settings)
        assert sorted(record.target.replicas for record in found.values()) == [2, 3]


class TestPublishedFaults:
    def test_full_product_in_the_label_means_nothing_is_available(self):
        s = placed(Serving(load=FULL, accelerator="NVIDIA-H100-SXM5-80GB"))
        nodes = [gpu_node("n1", 8)]
        assert limited(s, nodes=nodes, settings=PUBLISHED)["v1"].target.replicas == 4
        assert limited(s, nodes=nodes)["v1"].target.replicas == 6

    def test_fragments(self):
        """Three free GPUs, first in line needs two-GPU replicas: published loses the odd one, repaired returns it."""
        big = placed(Serving("big", [(0.9, 0)] * 2, gpus=2, model="big"))
        small = placed(Serving("small", [(0.75, 0)] * 2, model="small"), node="n1")
        nodes = [gpu_node("n1", 9)]
        eager = FleetSettings(max_step_up_factor=3)
        repaired = limited(big, small, nodes=nodes, settings=eager)
        assert (repaired["big"].target.replicas, repaired["small"].target.replicas) == (3, 3)

    def test_not_ready_nodes_and_foreign_pods_are_seen_by_the_repaired_only(self):
        s = placed(Serving(load=FULL))
        down = [gpu_node("n1", 4), gpu_node("n2", 8, ready=False), gpu_node("n3", 8, schedulable=False)]
        assert limited(s, nodes=down, settings=PUBLISHED)["v1"].target.replicas == 5
        assert limited(s, nodes=down)["v1"].target.replicas == 4
        full = {"nodes": [gpu_node("n1", 8)], "extra_pods": [on_node("other", 4)]}
        assert limited(s, settings=PUBLISHED, **full)["v1"].target.replicas == 5
        assert limited(s, **full)["v1"].target.replicas == 4


class TestRepaired:
    def test_ended_pods_hold_nothing(self):
        done = [on_node("done", 4, "Succeeded"), on_node("failed", 4, "Failed")]
        assert (
            limited(placed(Serving(load=FULL)), nodes=[gpu_node("n1", 8)], extra_pods=done)["v1"].target.replicas == 6
        )

    def test_per_node_fit(self):
        """Eight free GPUs in pairs do not hold one replica of four."""
        s = Serving(load=[(0.95, 0)] * 2, gpus=4, pod={"node": "n0", "gpus": 4})
        pairs = [gpu_node("n0", 8), *[gpu_node(f"n{i}", 2) for i in range(1, 5)]]
        record = limited(s, nodes=pairs)["v1"]
        assert (record.target.replicas, record.why.limited_by) == (2, LIMITED_BY)
        assert "not 4 together" in record.message
        assert limited(s, nodes=[gpu_node("n0", 8), gpu_node("n1", 4)])["v1"].target.replicas == 3

    def test_small_replicas_fill_the_fullest_node_first(self):
        small = Serving("a", [(0.79, 0)] * 2, model="a", pod={"node": "n0", "gpus": 1})
        large = Serving("b", [(0.75, 0)] * 2, model="b", gpus=4, pod={"node": "n0", "gpus": 4})
        nodes = [gpu_node("n0", 10), gpu_node("n1", 4), gpu_node("n2", 1)]
        found = limited(small, large, nodes=nodes)
        assert (found["a"].target.replicas, found["b"].target.replicas) == (3, 3)

    def test_replicas_without_a_node_yet_keep_their_claim(self):
        waiting = Serving("a", FULL, current=6, ready=4, desired=6, model="a")
        fleet = make_fleet(waiting, placed(Serving("b", FULL, model="b")), config=LIMITER, nodes=[gpu_node("n1", 12)])
        pods = [replace(p, node="n1", gpus=1) if p.key.name in {f"a-{i}" for i in range(4)} else p for p in fleet.pods]
        found = records(decide(replace(fleet, pods=tuple(pods)), REPAIRED))
        assert (found["a"].target.replicas, found["b"].target.replicas) == (6, 6)
        fleet = replace(fleet, pods=tuple(pods), nodes=(gpu_node("n1", 11),))
        assert records(decide(fleet, REPAIRED))["b"].target.replicas == 5

    @pytest.mark.parametrize("pods", [(), [{"gpus": 0}] * 8, [{"gpus": 1, "phase": "Succeeded"}] * 8])
    def test_replicas_that_never_come_keep_no_gpu_from_others(self, pods):
        """A Deployment with any spec.replicas that is paused, or whose pods ask for less than its template says now."""
        endless = {"spec_replicas": 2**31 - 1, "status_replicas": len(pods)}
        phantom = Serving("phantom", current=0, namespace="theirs", model="theirs", gpus=4, workload=endless)
        owner = OwnerRef("apps/v1", "Deployment", "phantom", "")
        there = [
            replace(Pod(Key("theirs", f"p-{i}"), f"p-{i}", owner, NOW, None, "Pending"), **fields)
            for i, fields in enumerate(pods)
        ]
        found = limited(placed(Serving(load=FULL)), phantom, nodes=[gpu_node("n1", 8)], extra_pods=there)
        assert (found["v1"].target.replicas, found["v1"].why.limited_by) == (6, None)

    def test_groups_of_pods_fit_as_a_whole(self):
        s = Serving(
            load=[(0.95, 0)] * 4,
            current=2,
            ready=2,
            gpus=8,
            kind="LeaderWorkerSet",
            workload={"pods_per_replica": 2},
            pod={"node": "n0", "gpus": 4, "ready_since": NOW - 3600},
        )
        nodes = [gpu_node("n0", 16), gpu_node("n1", 4), gpu_node("n2", 3)]
        assert limited(s, nodes=nodes)["v1"].target.replicas == 2
        assert limited(s, nodes=[*nodes, gpu_node("n3", 4)])["v1"].target.replicas == 3

    def test_node_selector_setting(self):
        nodes = [gpu_node("n1", 8), Node("n2", {"nvidia.com/gpu.product": "H100", "pool": "ml"}, {"nvidia.com/gpu": 8})]
        settings = FleetSettings(node_selector="pool=ml")
        record = limited(placed(Serving(load=[(0.95, 0)] * 8), "n2"), nodes=nodes, settings=settings)["v1"]
        assert record.target.replicas == 8
        broken = decide(make_fleet(Serving(load=FULL), config=LIMITER, nodes=nodes), FleetSettings(node_selector="a b"))
        assert "node_selector 'a b'" in broken.errors[0]

    def test_template_node_selector(self):
        s = replace(placed(Serving(load=FULL)), workload={"node_selector": {"zone": "a"}})
        labels = {"nvidia.com/gpu.product": "H100"}
        zoned = [
            Node("n1", {**labels, "zone": "a"}, {"nvidia.com/gpu": 5}),
            Node("n2", {**labels, "zone": "b"}, {"nvidia.com/gpu": 8}),
        ]
        assert limited(s, nodes=zoned)["v1"].target.replicas == 5

    def test_slices_are_not_whole_cards(self):
        sliced = [Node("n1", {"nvidia.com/gpu.product": "A100"}, {"nvidia.com/gpu": 4, "nvidia.com/mig-1g.10gb": 8})]
        whole = placed(Serving(load=FULL, accelerator="A100"))
        assert limited(whole, nodes=sliced)["v1"].target.replicas == 4
        part = Serving(load=FULL, accelerator="A100", workload={"gpu_resource": "nvidia.com/mig-1g.10gb"})
        assert limited(part, nodes=sliced)["v1"].target.replicas == 6

    @pytest.mark.parametrize(("resource", "free"), [("nvidia.com/mig-1g.10gb", 1), ("nvidia.com/gpu", 4), ("", 4)])
    def test_a_pod_takes_from_the_resource_that_it_asks_for(self, resource, free):
        sliced = [Node("n1", {"nvidia.com/gpu.product": "A100"}, {"nvidia.com/gpu": 7, "nvidia.com/mig-1g.10gb": 4})]
        other = Pod(Key("x", "p"), "u", None, 0.0, node="n1", phase="Running", gpus=3, gpu_resource=resource)
        pools = Pools(replace(make_fleet(nodes=sliced), pods=(other,)), lambda _: True)
        taken = "A100-MIG-1g.10gb" if "mig" in resource else "A100"
        assert pools.free[taken] == {"n1": free}
        assert {pool: sum(there.values()) for pool, there in pools.free.items() if pool != taken} == (
            {"A100": 7} if "mig" in resource else {"A100-MIG-1g.10gb": 4}
        )

    def test_minimum_does_not_overrule_the_limiter(self):
        s = placed(Serving(load=FULL, variant={"annotations": {"modelyard.dev/min-replicas": "9"}}))
        record = limited(s, nodes=[gpu_node("n1", 5)])["v1"]
        assert (record.target.replicas, record.why.limited_by) == (5, LIMITED_BY)

    def test_limited_shows_in_the_condition(self):
        record = limited(placed(Serving(load=FULL)), nodes=[gpu_node("n1", 4)])["v1"]
        ready = next(c for c in record.conditions if c.type == "OptimizationReady")
        assert "limited to 4 by GPUs" in ready.message

    def test_local_switch_does_not_count(self):
        maps = {Key("chat", "wva-saturation-scaling-config"): LIMITER}
        assert one(Serving(load=FULL), config_maps=maps, nodes=[]).target.action is Action.UP
