"""Unit costs, service classes and profiles: what is read, what is refused, and that one mistake hurts only itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import CONTROLLER, MODEL, condition
from slo_builders import CLASSES, COSTS, H100, SLO, one_slo, premium, run_slo

from modelyard.autoscaling.configuration.settings import FleetSettings
from modelyard.autoscaling.pipeline.decide import decide
from modelyard.autoscaling.variants.classes import ServiceClasses, slo_look_alikes
from modelyard.autoscaling.variants.costs import UnitCosts
from modelyard.autoscaling.variants.profile import ProfileInvalid, identity_mismatch, parse_profile
from modelyard.objects import Key

SETTINGS = FleetSettings()
SAMPLE = {
    "premium.yaml": (
        "name: Premium\npriority: 1\ndata:\n"
        "- {model: default/default, slo-tpot: 24, slo-ttft: 500}\n"
        "- {model: meta/llama0-70b, slo-tpot: 80, slo-ttft: 500}\n"
    ),
    "freemium.yaml": (
        "name: Freemium\npriority: 10\ndata:\n"
        "- {model: ibm/granite-13b, slo-tpot: 200, slo-ttft: 2000}\n"
        "- {model: meta/llama0-7b, slo-tpot: 150, slo-ttft: 1500}\n"
    ),
}


class TestUnitCosts:
    def costs(self, data, local=None):
        maps = {COSTS: data}
        if local is not None:
            maps[Key("chat", COSTS.name)] = local
        return UnitCosts(maps, SETTINGS)

    @pytest.mark.parametrize(
        ("value", "price"),
        [
            ('{"device": "NVIDIA-A100-PCIE-80GB", "cost": "40.00"}', 40.0),
            ('{"cost": 40}', 40.0),
            ('{"cost": 40.5}', 40.5),
            ('{"cost": 0}', 0.0),
            ("40.00", 40.0),
            ('{"cost": "dear"}', None),
            ('{"cost": -1}', None),
            ('{"cost": "nan"}', None),
            ('{"cost": "1e999"}', None),
            ('{"cost": true}', None),
            ('{"device": "x"}', None),
            ("{broken", None),
            ("[1]", None),
        ],
    )
    def test_one_value(self, value, price):
        costs = self.costs({"A100": value, "H100": '{"cost": "100"}'})
        assert costs.price("chat", "A100") == price
        assert costs.price("chat", "H100") == 100
        assert bool(costs.notices) is (price is None)
        assert all("'A100'" in notice.message for _, notice in costs.notices)

    def test_a_local_price_comes_first_and_the_rest_is_inherited(self):
        costs = self.costs({"A100": "40", "H100": "100"}, local={"A100": "7"})
        assert [costs.price("chat", "A100"), costs.price("chat", "H100"), costs.price("other", "A100")] == [7, 100, 40]

    def test_a_product_name_finds_its_short_name(self):
        assert self.costs({"A100": "40"}).price("chat", "NVIDIA-A100-PCIE-80GB") == 40

    def test_no_config_map(self):
        assert UnitCosts({}, SETTINGS).price("chat", "A100") is None


class TestServiceClasses:
    def resolve(self, model, data=None, name="other", key="none", published=False, maps=None):
        classes = ServiceClasses({CLASSES: SAMPLE if data is None else data, **(maps or {})}, SETTINGS)
        spec = replace(SLO().spec, class_name=name, class_key=key)
        return classes.resolve("chat", spec, model, not published), classes

    @pytest.mark.parametrize(
        ("model", "expected"),
        [
            ("meta/llama0-70b", ("Premium", 1, 500, 80)),
            ("ibm/granite-13b", ("Freemium", 10, 2000, 200)),
            ("meta/llama0-7b", ("Freemium", 10, 1500, 150)),
            ("unheard/of", ("Premium", 1, 500, 24)),
        ],
    )
    def test_the_shipped_sample(self, model, expected):
        (found, note), _ = self.resolve(model)
        assert (found.name, found.priority, found.ttft, found.itl) == expected
        assert "sloClassRef other/none" in note

    def test_without_default_there_is_none_and_it_is_said_where_to_add_it(self):
        (found, note), _ = self.resolve("unheard/of", {"freemium.yaml": SAMPLE["freemium.yaml"]})
        assert found is None
        assert "unheard/of" in note
        assert "service-classes-config" in note

    def test_published_takes_the_first_document_and_no_default(self):
        two = {"b": premium(itl=20, name="B"), "a": premium(itl=10, name="A")}
        (found, note), _ = self.resolve(MODEL, two, name="service-classes-config", key="b", published=True)
        assert (found.name, note) == ("A", "")
        assert self.resolve("unheard/of", published=True)[0].service is None

    def test_the_reference_wins_over_the_scan(self):
        two = {"a": premium(itl=10, name="A"), "b": premium(itl=20, name="B")}
        (found, note), _ = self.resolve(MODEL, two, name="service-classes-config", key="b")
        assert (found.name, found.itl, note) == ("B", 20, "")

    def test_the_own_namespace_comes_before_the_controller_namespace(self):
        maps = {Key("chat", "mine"): {"a": premium(itl=11)}, Key(CONTROLLER, "mine"): {"a": premium(itl=12)}}
        assert self.resolve(MODEL, name="mine", key="a", maps=maps)[0].service.itl == 11
        del maps[Key("chat", "mine")]
        assert self.resolve(MODEL, name="mine", key="a", maps=maps)[0].service.itl == 12

    @pytest.mark.parametrize("name", ["mine", CLASSES.name])
    def test_the_classes_of_another_namespace_are_never_used(self, name):
        maps = {Key("tenant", name): {"a": premium(itl=1)}}
        assert self.resolve(MODEL, {}, name=name, key="a", maps=maps)[0].service is None

    def test_a_key_missing_locally_is_looked_up_centrally(self):
        maps = {Key("chat", "mine"): {"b": premium(itl=11)}, Key(CONTROLLER, "mine"): {"a": premium(itl=12)}}
        assert self.resolve(MODEL, name="mine", key="a", maps=maps)[0].service.itl == 12

    @pytest.mark.parametrize("key", ["Freemium", "meta/llama0-7b"])
    def test_the_key_may_name_the_class_or_the_model_entry(self, key):
        (found, note), _ = self.resolve("meta/llama0-7b", name="service-classes-config", key=key)
        assert (found.name, found.itl, note) == ("Freemium", 150, "")

    def test_a_referred_document_without_the_model_uses_its_own_default(self):
        (found, note), _ = self.resolve("ibm/granite-13b", name="service-classes-config", key="premium.yaml")
        assert (found.name, found.itl, note) == ("Premium", 24, "")

    def test_slo_itl_is_an_alias_and_a_missing_target_is_none(self):
        data = {"a": f"data: [{{model: {MODEL}, slo-itl: '24'}}]"}
        (found, _), _ = self.resolve(MODEL, data)
        assert (found.name, found.priority, found.ttft, found.itl) == ("a", 100, 0, 24)

    @pytest.mark.parametrize("priority", [0, -1, 101, "high", 1.5, True])
    def test_a_priority_out_of_range_counts_as_the_lowest(self, priority):
        (found, _), classes = self.resolve(MODEL, {"a": premium(priority=priority)})
        assert found.priority == 100
        assert "priority" in classes.notices[0][1].message

    @pytest.mark.parametrize("value", [-1, "soon", ".nan", ".inf", "[1]"])
    def test_a_bad_number_skips_its_entry_only(self, value):
        data = {
            "a": f"name: A\ndata:\n- {{model: {MODEL}, slo-tpot: {value}}}\n- {{model: other, slo-tpot: 5}}\n",
            "b": premium(name="B"),
        }
        (found, _), classes = self.resolve(MODEL, data)
        assert found.name == "B"
        assert "slo-tpot" in classes.notices[0][1].message
        assert self.resolve("other", data)[0].service.name == "A"

    @pytest.mark.parametrize("document", ["{broken", "just text", "data: 5", "name: x"])
    def test_a_broken_document_hurts_only_itself_and_is_named(self, document):
        (found, _), classes = self.resolve(MODEL, {"a": document, "b": premium()})
        assert found.name == "Premium"
        assert "'a'" in classes.notices[0][1].message

    def test_a_variant_that_refers_to_a_broken_document_gets_no_other_class(self):
        (found, note), _ = self.resolve(MODEL, {"a": "{broken", "b": premium()}, name="service-classes-config", key="a")
        assert found is None
        assert "'a'" in note

    @pytest.mark.parametrize("name", ["service-classes-config,foo=bar", "too-many"])
    def test_a_reference_that_is_not_looked_up_says_why(self, name):
        classes = ServiceClasses({CLASSES: {"a": premium()}}, SETTINGS, {"mine": {"chat"}})
        spec = replace(SLO().spec, class_name=name, class_key="a")
        found, note = classes.resolve("chat", spec, MODEL)
        assert found.name == "Premium"
        assert "it was not looked up" in note
        assert "not looked up" not in classes.resolve("chat", replace(spec, class_name="mine"), MODEL).note

    def test_look_alikes_are_named_unless_somebody_refers_to_them(self):
        maps = {
            Key(CONTROLLER, name): {"a": "b"} for name in ("serviceclass", "accelerator-unitcost", "my-service-class")
        }
        found = slo_look_alikes(maps, SETTINGS, (), (Key(CONTROLLER, "my-service-class"),))
        assert [where for where, _ in found] == [f"{CONTROLLER}/accelerator-unitcost", f"{CONTROLLER}/serviceclass"]


class TestProfiles:
    def test_numbers_as_text(self):
        profile = parse_profile(SLO(profile=("20.58", " 0.41 ", "5.2", "1e-1"), batch=4).spec)
        assert (profile.alpha, profile.beta, profile.gamma, profile.delta, profile.max_batch) == (
            20.58,
            0.41,
            5.2,
            0.1,
            4,
        )

    @pytest.mark.parametrize("index", range(4))
    @pytest.mark.parametrize("value", ["abc", "", "nan", "inf", "-1", "1e9"])
    def test_a_bad_value_is_named(self, index, value):
        values = [str(v) for v in H100]
        values[index] = value
        with pytest.raises(ProfileInvalid, match=("alpha", "beta", "gamma", "delta")[index]):
            parse_profile(SLO(profile=values).spec)

    def test_alpha_must_be_above_zero_and_the_others_may_be_zero(self):
        assert parse_profile(SLO(profile=(1, 0, 0, 0)).spec).beta == 0
        with pytest.raises(ProfileInvalid, match="alpha"):
            parse_profile(SLO(profile=(0, 1, 1, 1)).spec)

    def test_everything_wrong_is_said_at_once(self):
        spec = replace(SLO().spec, decode={"alpha": "x"}, prefill={"gamma": "1"}, max_batch=0)
        with pytest.raises(ProfileInvalid) as caught:
            parse_profile(spec)
        assert all(
            word in str(caught.value) for word in ("decodeParms.alpha", "beta is missing", "delta", "maxBatchSize")
        )

    def test_identity(self):
        spec = SLO(accelerator="A100", count=4).spec
        assert identity_mismatch(spec, MODEL) is None
        assert "A100-4" in str(identity_mismatch(replace(spec, variant_id="x-A100-2"), MODEL))


class TestInTheDecision:
    def test_an_invalid_profile_hurts_only_itself(self):
        found = run_slo(SLO("bad", profile=("abc", 1, 1, 1)), SLO("good"), load=40.0)
        assert condition(found["bad"], "ProfileValid") == ("False", "ProfileInvalid")
        assert condition(found["bad"], "OptimizationReady") == ("True", "SaturationOnlyMode")
        assert (found["bad"].target.replicas, found["bad"].writes.scale) == (1, None)
        assert condition(found["good"], "ProfileValid") == ("True", "ProfileValid")
        assert found["good"].target.replicas == 2  # the other one serves half of the load

    def test_an_accelerator_without_a_price_is_sized_and_named(self):
        record = one_slo(SLO(), load=40.0, costs={"A100": "40"})
        assert (record.target.replicas, record.now.cost) == (3, 10.0)
        assert condition(record, "AcceleratorResolved") == ("False", "UnitCostMissing")

    def test_the_price_counts_the_accelerators(self):
        record = one_slo(SLO(accelerator="A100", count=4))
        assert (record.now.cost, record.now.gpus) == (160.0, 4)
        assert record.now.allocation.cost == 160.0

    def test_the_accelerator_of_the_spec_counts_and_a_different_label_is_told(self):
        label = {"inference.optimization/acceleratorName": "L40S"}
        record = one_slo(SLO(variant={"labels": label}))
        assert (record.now.accelerator, record.now.cost) == ("H100", 100.0)
        assert "AcceleratorMismatch" in [notice.reason for notice in record.notices]
        assert "AcceleratorMismatch" not in [notice.reason for notice in one_slo(SLO()).notices]

    def test_a_variant_id_that_disagrees_is_told(self):
        spec = replace(SLO().spec, variant_id="meta/llama-H100-8")
        record = one_slo(SLO(variant={"slo": spec}))
        assert "VariantIDMismatch" in [notice.reason for notice in record.notices]

    def test_no_class_at_all_leaves_it_to_saturation(self):
        record = one_slo(SLO(), load=40.0, classes={})
        assert condition(record, "SLOFeasible") == ("Unknown", "SLOClassNotFound")
        assert record.target.replicas == 1

    def test_notices_of_config_maps_reach_the_tick(self):
        from slo_builders import slo_fleet

        decision = decide(slo_fleet(SLO(), classes={"a": "{broken", "premium.yaml": premium()}), SETTINGS)
        assert any("'a'" in notice.message for where, notice in decision.notices if where == str(CLASSES))
