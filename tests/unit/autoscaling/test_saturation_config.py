"""Thresholds from ConfigMaps: defaults, layers, validation and what users are told."""

from __future__ import annotations

import sys
from typing import ClassVar

import pytest
from builders import CONTROLLER, MODEL, PUBLISHED, REPAIRED, SATURATION, Serving, condition, make_fleet, one, run

from modelyard.autoscaling.configuration.config_maps import look_alikes
from modelyard.autoscaling.configuration.settings import FleetSettings
from modelyard.autoscaling.decisions.decision import Action
from modelyard.autoscaling.pipeline.decide import decide
from modelyard.autoscaling.variants.saturation_config import Quota, SaturationConfigs, Thresholds, TokenThresholds
from modelyard.objects import Key

SETTINGS = FleetSettings()


def configs(data=None, maps=None, settings=SETTINGS):
    found = dict(maps or {})
    if data is not None:
        found[SATURATION] = data
    return SaturationConfigs(found, settings)


def messages(found):
    return [notice.message for _, notice in found.notices]


class TestDefaults:
    def test_no_config_map(self):
        found = configs()
        assert found.resolve("chat", MODEL).thresholds == Thresholds(0.80, 5, 0.10, 3)
        ((about, notice),) = found.notices
        assert about == str(SATURATION)
        assert (notice.reason, notice.kind) == ("DefaultConfiguration", "Normal")
        assert "kvCacheThreshold 0.8" in notice.message

    @pytest.mark.parametrize("settings", [PUBLISHED, REPAIRED])
    def test_without_config_map_scaling_works(self, settings):
        assert one(Serving(load=[(0.9, 9)]), settings=settings).target.replicas == 2

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("", Thresholds()),
            ("kvCacheThreshold: 0.9", Thresholds(0.9)),
            ("{kvCacheThreshold: 0.9, kvSpareTrigger: 0.2}", Thresholds(0.9, kv_trigger=0.2)),
            ("queueSpareTrigger: 0", Thresholds(queue_trigger=0)),
            ("queueSpareTrigger: null", Thresholds()),
        ],
    )
    def test_absent_inherits_and_zero_is_zero(self, text, expected):
        effective = configs({"default": text}).resolve("chat", MODEL)
        assert effective.thresholds == expected
        assert not effective.errors

    def test_missing_default_entry(self):
        found = configs({"other": "{model_id: x, kvCacheThreshold: 0.5}"})
        assert found.resolve("chat", MODEL).thresholds == Thresholds()


@pytest.mark.parametrize(
    ("text", "field", "says"),
    [
        ("kvCacheThreshold: 1.1", "kvCacheThreshold = 1.1", "between 0 and 1"),
        ("kvCacheThreshold: -0.1", "kvCacheThreshold = -0.1", "between 0 and 1"),
        ("kvSpareTrigger: 2", "kvSpareTrigger = 2", "between 0 and 1"),
        ("queueLengthThreshold: -1", "queueLengthThreshold = -1", "not be negative"),
        ("queueSpareTrigger: -3", "queueSpareTrigger = -3", "not be negative"),
        ("{kvCacheThreshold: 0.2, kvSpareTrigger: 0.3}", "kvCacheThreshold = 0.2", "kvSpareTrigger = 0.3"),
        ("kvCacheThreshold: high", "kvCacheThreshold = 'high'", "finite number"),
        ("kvCacheThreshold: .nan", "kvCacheThreshold = nan", "finite number"),
        ("kvCacheThreshold: true", "kvCacheThreshold = True", "finite number"),
        ("enableLimiter: 1", "enableLimiter = 1", "true or false"),
        ("{analyzerName: saturation, scaleUpThreshold: 1.2}", "scaleUpThreshold = 1.2", "at most 1"),
        ("{analyzerName: saturation, scaleDownBoundary: 0.9}", "scaleUpThreshold = 0.85", "above scaleDownBoundary"),
    ],
)
def test_invalid_values_name_config_map_key_field_and_value(text, field, says):
    found = configs({"default": text})
    (error,) = found.resolve("chat", MODEL).errors
    assert not found.limiter
    assert error.startswith(f"ConfigMap {SATURATION} key 'default': {field}: ")
    assert says in error
    assert error in messages(found)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{kvCacheThreshold: 0, kvSpareTrigger: 0}", "kvCacheThreshold = 0: every replica counts as saturated"),
        ("{queueLengthThreshold: 0, queueSpareTrigger: 0}", "queueLengthThreshold = 0: every replica"),
        ("queueSpareTrigger: 6", "queueSpareTrigger = 6: above queueLengthThreshold = 5"),
    ],
)
def test_values_that_cannot_work(text, says):
    found = configs({"default": text})
    effective = found.resolve("chat", MODEL)
    assert not effective.errors
    assert says in effective.unsafe[0]
    assert any(says in message for message in messages(found))
    s = Serving(load=[(0.1, 0)] * 2)
    assert one(s, config={"default": text}).why.reason == "InvalidConfiguration"
    assert one(s, config={"default": text}, settings=PUBLISHED).why.reason != "InvalidConfiguration"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("queueSpareTrigger: 5", "equals queueLengthThreshold: any waiting request scales up"),
        ("queueSpareTrigger: 4.5", "scale-down is hardly possible"),
        ("kvSpareTrigger: 0.79", "scale-down is impossible"),
        ("kvSpareThreshold: 0.1", "unknown field 'kvSpareThreshold'"),
    ],
)
def test_warnings_do_not_forbid(text, says):
    found = configs({"default": text})
    effective = found.resolve("chat", MODEL)
    assert not effective.errors
    assert not effective.unsafe
    assert any(says in message for message in messages(found))


def test_invalid_configuration_keeps_replicas_and_says_so():
    record = one(Serving(load=[(0.9, 9)] * 2, desired=2), config={"default": "kvCacheThreshold: 7"})
    assert (record.target.replicas, record.target.decided, record.writes.scale) == (2, False, None)
    assert condition(record, "OptimizationReady") == ("False", "InvalidConfiguration")
    assert "kvCacheThreshold = 7" in record.why.message


class TestOverrides:
    DATA: ClassVar = {
        "default": "{kvCacheThreshold: 0.9, queueLengthThreshold: 10}",
        "any-key": f"{{model_id: {MODEL}, namespace: chat, kvCacheThreshold: 0.6}}",
        "everywhere": "{model_id: other, queueSpareTrigger: 1}",
        "third#batch": "kvSpareTrigger: 0.2",
        "with#hash#batch": "kvSpareTrigger: 0.3",
    }

    @pytest.mark.parametrize(
        ("namespace", "model", "expected"),
        [
            ("chat", MODEL, Thresholds(0.6, 10)),
            ("batch", MODEL, Thresholds(0.9, 10)),
            ("batch", "other", Thresholds(0.9, 10, queue_trigger=1)),
            ("batch", "third", Thresholds(0.9, 10, kv_trigger=0.2)),
            ("chat", "third", Thresholds(0.9, 10)),
            ("batch", "with#hash", Thresholds(0.9, 10, kv_trigger=0.3)),
        ],
    )
    def test_matching_and_field_by_field_merge(self, namespace, model, expected):
        assert configs(self.DATA).resolve(namespace, model).thresholds == expected

    def test_exact_namespace_beats_any(self):
        data = {"a": "{model_id: m, kvCacheThreshold: 0.5}", "b": "{model_id: m, namespace: n, kvCacheThreshold: 0.6}"}
        assert configs(data).resolve("n", "m").thresholds.kv == 0.6
        assert configs(data).resolve("x", "m").thresholds.kv == 0.5

    def test_merged_result_is_validated(self):
        data = {"default": "kvCacheThreshold: 0.3", "o": "{model_id: m, kvSpareTrigger: 0.4}"}
        found = configs(data)
        assert not found.resolve("n", "else").errors
        assert "kvSpareTrigger = 0.4" in found.resolve("n", "m").errors[0]

    def test_override_repairs_a_bad_default(self):
        data = {"default": "kvCacheThreshold: high", "o": "{model_id: m, kvCacheThreshold: 0.7}"}
        found = configs(data)
        assert found.resolve("n", "m").errors == ()
        assert found.resolve("n", "else").errors

    @pytest.mark.parametrize(
        ("data", "says"),
        [
            ({"x": "kvCacheThreshold: 0.5"}, "key 'x': override without model_id"),
            ({"a": "model_id: m", "b": "model_id: m"}, "key 'b': second override for model 'm'"),
            ({"a": "[1, 2]"}, "must be a YAML mapping"),
            ({"a": "{model_id: m"}, "not valid YAML"),
            ({"a": "{model_id: m, enableLimiter: true}"}, "enableLimiter is read from the global 'default' entry only"),
        ],
    )
    def test_bad_entries_are_reported_and_the_rest_stays(self, data, says):
        found = configs({**data, "good": "{model_id: good, kvCacheThreshold: 0.5}"})
        assert any(says in message for message in messages(found))
        assert found.resolve("n", "good").thresholds.kv == 0.5

    def test_first_of_two_duplicates_wins(self):
        data = {"a": "{model_id: m, kvCacheThreshold: 0.5}", "b": "{model_id: m, kvCacheThreshold: 0.6}"}
        assert configs(data).resolve("n", "m").thresholds.kv == 0.5

    def test_unreadable_default_keeps_replicas_instead_of_guessing(self):
        record = one(Serving(load=[(0.9, 9)]), config={"default": "kvCacheThreshold: [0.8"})
        assert (record.target.replicas, record.why.reason) == (1, "InvalidConfiguration")
        assert "not valid YAML at line" in record.why.message

    def test_override_in_effect_shows_in_the_record(self):
        config = {"o": f"{{model_id: {MODEL}, namespace: chat, kvCacheThreshold: 0.4}}"}
        record = one(Serving(load=[(0.35, 0)] * 2), config=config)
        assert record.target.action is Action.UP
        assert record.why.steps[0].stage == "configuration"
        assert "kvCacheThreshold 0.4" in record.why.steps[0].detail
        assert "key 'o'" in record.why.steps[0].detail


class TestNamespaceLocal:
    LOCAL = Key("chat", SATURATION.name)

    def test_replaces_the_whole_map(self):
        maps = {
            SATURATION: {"default": "kvCacheThreshold: 0.9", "o": "{model_id: m, kvCacheThreshold: 0.5}"},
            self.LOCAL: {"default": "queueLengthThreshold: 9"},
        }
        found = configs(maps=maps)
        assert found.resolve("chat", "m").thresholds == Thresholds(0.80, 9)
        assert found.resolve("else", "m").thresholds.kv == 0.5

    def test_empty_one_does_not(self):
        maps = {SATURATION: {"default": "kvCacheThreshold: 0.9"}, self.LOCAL: {}}
        assert configs(maps=maps).resolve("chat", "m").thresholds.kv == 0.9

    def test_empty_namespace_is_global(self):
        maps = {SATURATION: {"default": "kvCacheThreshold: 0.9"}, Key("", SATURATION.name): {"default": ""}}
        assert configs(maps=maps).resolve("", "m").thresholds.kv == 0.9

    def test_override_without_namespace_means_that_namespace(self):
        maps = {self.LOCAL: {"o": "{model_id: m, kvCacheThreshold: 0.5}"}}
        assert configs(maps=maps).resolve("chat", "m").thresholds.kv == 0.5

    def test_entries_for_another_namespace_change_nothing_there(self):
        entries = {"o": "{model_id: m, namespace: else, kvCacheThreshold: 0.5}", "m#else": "kvCacheThreshold: 0.4"}
        found = configs(maps={self.LOCAL: {"default": "kvCacheThreshold: 0.6", **entries}})
        assert found.resolve("chat", "m").thresholds.kv == 0.6
        assert found.resolve("else", "m").thresholds == Thresholds()

    def test_cannot_switch_limiter_or_analyzer(self):
        found = configs(maps={self.LOCAL: {"default": "{enableLimiter: true, analyzerName: saturation}"}})
        found.resolve("chat", "m")
        assert not found.limiter
        assert found.resolve("chat", "m").tokens is None
        assert any("enableLimiter is read from the global 'default' entry only" in m for m in messages(found))
        wide = configs(maps={self.LOCAL: {"default": "limiters: [{type: quota, quotas: {H100: -1}}]"}})
        wide.resolve("chat", "m")
        assert wide.quotas == ()
        assert any("limiters is read from the global 'default' entry only" in m for m in messages(wide))
        assert any("analyzerName is read from the global ConfigMap only" in m for m in messages(found))


class TestAnalyzerAndNames:
    def test_token_analyzer_with_its_defaults(self):
        found = configs({"default": "analyzerName: saturation"}).resolve("n", "m")
        assert not found.errors, "its defaults are filled in before validation"
        assert found.tokens == TokenThresholds(0.85, 0.70)
        assert "scaleUpThreshold 0.85, scaleDownBoundary 0.7" in found.step.detail

    def test_percentages_are_the_default(self):
        assert configs({"default": "scaleUpThreshold: 0.9"}).resolve("n", "m").tokens is None

    def test_chosen_and_tuned_by_model(self):
        data = {
            "default": "{analyzerName: saturation, scaleUpThreshold: 0.9}",
            "tuned": "{model_id: tuned, scaleDownBoundary: 0.5}",
            "old": "{model_id: old, analyzerName: ''}",
        }
        found = configs(data)
        assert found.resolve("n", "m").tokens == TokenThresholds(0.9, 0.7)
        assert found.resolve("n", "tuned").tokens == TokenThresholds(0.9, 0.5)
        assert found.resolve("n", "old").tokens is None
        assert not messages(found)

    def test_one_model_may_try_it(self):
        found = configs({"default": "", "m": "{model_id: m, namespace: n, analyzerName: saturation}"})
        assert found.resolve("n", "m").tokens == TokenThresholds()
        assert found.resolve("else", "m").tokens is None

    def test_a_local_map_tunes_what_the_global_one_chose(self):
        maps = {
            SATURATION: {"default": "", "m": "{model_id: m, analyzerName: saturation}"},
            Key("chat", SATURATION.name): {"default": "scaleUpThreshold: 0.8"},
        }
        found = configs(maps=maps)
        assert found.resolve("chat", "m").tokens == TokenThresholds(0.8, 0.7)
        assert found.resolve("chat", "other").tokens is None

    def test_an_override_is_validated_with_what_it_inherits(self):
        data = {"default": "analyzerName: saturation", "m": "{model_id: m, scaleDownBoundary: 0.85}"}
        (error,) = configs(data).resolve("n", "m").errors
        assert "scaleUpThreshold = 0.85: must be above scaleDownBoundary = 0.85" in error

    def test_unknown_analyzer(self):
        assert any("unknown analyzer" in m for m in messages(configs({"default": "analyzerName: magic"})))

    @pytest.mark.parametrize("name", ["saturation-scaling-config", "capacity-scaling-config"])
    def test_older_names_are_accepted(self, name):
        found = configs(maps={Key(CONTROLLER, name): {"default": "kvCacheThreshold: 0.5"}})
        assert found.resolve("n", "m").thresholds.kv == 0.5

    def test_configured_name_wins_and_the_other_is_reported(self):
        maps = {
            Key(CONTROLLER, "saturation-scaling-config"): {"default": "kvCacheThreshold: 0.5"},
            Key(CONTROLLER, "release-wva-saturation"): {"default": "kvCacheThreshold: 0.6"},
        }
        found = configs(maps=maps, settings=FleetSettings(saturation_config_map="release-wva-saturation"))
        assert found.resolve("n", "m").thresholds.kv == 0.6
        assert any("saturation-scaling-config is not used" in message for message in messages(found))

    @pytest.mark.parametrize(
        ("name", "right"),
        [
            ("wva-saturation-config", "wva-saturation-scaling-config"),
            ("wva-scale-to-zero-config", "wva-model-scale-to-zero-config"),
            ("release-wva-saturation-scaling-config", "wva-saturation-scaling-config"),
        ],
    )
    def test_look_alikes_are_reported(self, name, right):
        ((about, notice),) = look_alikes({Key(CONTROLLER, name): {"default": ""}}, SETTINGS, ["chat"])
        assert about == f"{CONTROLLER}/{name}"
        assert notice.kind == "Warning"
        assert repr(right) in notice.message
        decision = decide(
            make_fleet(Serving(load=[(0.5, 0)]), config_maps={Key("chat", name): {"default": ""}}), SETTINGS
        )
        assert (f"chat/{name}", "ConfigurationIgnored") in [(about, n.reason) for about, n in decision.notices]

    def test_others_and_foreign_namespaces_are_not(self):
        maps = {
            SATURATION: {"default": ""},
            Key(CONTROLLER, "wva-queueing-model-config"): {},
            Key("foreign", "wva-saturation-config"): {},
        }
        assert look_alikes(maps, SETTINGS, ["chat"]) == []

    @pytest.mark.parametrize(
        "name", ["wva-variantautoscaling-config", "workload-variant-autoscaler-variantautoscaling-config"]
    )
    def test_leftover_process_settings_are_noticed(self, name):
        maps = {Key(CONTROLLER, name): {"WVA_SCALE_TO_ZERO": "true", "GLOBAL_OPT_INTERVAL": "60s"}}
        decision = decide(make_fleet(Serving(load=[(0.5, 0)]), config_maps=maps), SETTINGS)
        ((about, notice),) = [one for one in decision.notices if one[1].reason == "ConfigurationIgnored"]
        assert (about, notice.kind) == (f"{CONTROLLER}/{name}", "Warning")
        assert "GLOBAL_OPT_INTERVAL, WVA_SCALE_TO_ZERO" in notice.message
        assert look_alikes({Key("chat", name): {}}, SETTINGS, ["chat"]) == []


class TestLimiters:
    def test_read(self):
        quota = "{type: quota, name: q, quotas: {NVIDIA-A100-PCIE-80GB: 3}, namespaceQuotas: {}, exclude: [x]}"
        found = configs({"default": f"limiters: [{{type: inventory}}, {quota}]"})
        assert found.limiter
        assert found.quotas == (Quota("q", {"A100": 3}, {}, frozenset({"x"})),)
        assert configs({"default": "limiters: []"}).quotas == ()

    @pytest.mark.parametrize(
        ("entry", "says"),
        [
            ("{type: quota}", "has no quotas and no namespaceQuotas"),
            ("{type: quota, scope: cluster, namespaceQuotas: {a: {H100: 1}}}", "has no quotas"),
            ("{type: quota, scope: cluster, quotas: {}, namespaceQuotas: {}}", "scope cluster takes quotas only"),
            ("{type: quota, quotas: {H100: -2}}", "limiters[0].quotas.H100"),
            ("{type: quota, quotas: {H100: many}}", "limiters[0].quotas.H100"),
            ("{type: quota, quotas: {H100: 1}, kueue: {}}", "limiters[0].kueue: unknown field"),
            ("{type: gpu-inventory, quotas: {H100: 1}}", "gpu-inventory takes no quotas"),
            ("{type: budget}", "limiters[0].type"),
            ("4", "limiters[0]"),
        ],
    )
    def test_what_cannot_be_read_limits_nobody_and_moves_nobody(self, entry, says):
        found = configs({"default": f"limiters: [{entry}]"})
        assert any(says in message for message in messages(found))
        assert any(says in error for error in found.resolve("chat", MODEL).errors)


def test_limiter_switch():
    assert configs({"default": "enableLimiter: true"}).limiter
    assert not configs({"default": "enableLimiter: false"}).limiter
    assert not configs().limiter


def test_models_with_quotes_and_backslashes():
    model = "we\"ird\\model's {id}#x"
    config = {"o": "model_id: 'we\"ird\\model''s {id}#x'\nnamespace: chat\nkvCacheThreshold: 0.4"}
    found = run(Serving(load=[(0.35, 0)] * 2, model=model), Serving("b", [(0.35, 0)] * 2), config=config)
    assert found["v1"].target.action is Action.UP
    assert found["b"].target.action is Action.NONE


def test_of_long_texts_few_are_remembered():
    """Sixty-four documents of 64 KiB, where there were two thousand."""

    def read(number):
        text = f"kvCacheThreshold: 0.5 # {number} {'x' * 60_000}"
        assert configs({"default": text}).resolve("chat", MODEL).thresholds.kv == 0.5
        return text

    first = read(0)
    held = sys.getrefcount(first)
    for number in range(1, 70):
        read(number)
    assert sys.getrefcount(first) < held
