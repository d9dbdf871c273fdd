"""Engine options from a worker's config, and the KV connector: the tables of the reference, with their repairs."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import pytest

from modelyard.workloads.rendering import engine_options as config
from modelyard.workloads.rendering.values import Refusal

NO = frozenset({"enable-prefix-caching"})


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("text", ["--x", "text"]),
        ("", ["--x"]),
        (True, ["--x"]),
        (False, []),
        (8192, ["--x", "8192"]),
        (1048576, ["--x", "1048576"]),
        (1048576.0, ["--x", "1048576"]),
        (10**21, ["--x", "1000000000000000000000"]),
        (0.9, ["--x", "0.9"]),
        (1e-05, ["--x", "1e-05"]),
        (None, []),
        ([], []),
        (["a", 1, None, True, {"b": 2}], ["--x", "a", "1", "true", '{"b":2}']),
        ({"b": [1, 2.5], "a": None}, ["--x", '{"b":[1,2.5],"a":null}']),
        ("$(X) `id`", ["--x", "$(X) `id`"]),
    ],
)
def test_values(value: Any, words: list[str]) -> None:
    assert config.words(config.options({"x": value}, "config")) == words


def test_a_switch_that_can_be_on_by_default_is_switched_off() -> None:
    given = {"enable_prefix_caching": False, "trust-remote-code": False}
    assert config.words(config.options(given, "config", NO)) == ["--no-enable-prefix-caching"]


def test_keys_are_sorted_as_the_flags_that_they_become() -> None:
    given = {"max_model_len": 1, "max-z": 2, "--max-num-seqs": 3, "camelCase": 4}
    flags = [word for word in config.words(config.options(given, "config")) if word.startswith("--")]
    assert flags == ["--camelCase", "--max-model-len", "--max-num-seqs", "--max-z"]


@pytest.mark.parametrize(
    ("given", "field", "said"),
    [
        ({"a_b": 1, "a-b": 2}, "config.a_b", "given twice"),
        ({"": 1}, "config.", "no name of an option"),
        ({"x y": 1}, "config.x y", "no name of an option"),
        ({"a\n": 1}, r"config.a\n", "no name of an option"),
        ({"a": math.nan}, "config.a", "no number"),
        ({"a": [math.inf]}, "config.a", "no number"),
        ({"a": "x\0y"}, "config.a", "NUL"),
    ],
)
def test_what_is_no_option_is_refused(given: dict[str, Any], field: str, said: str) -> None:
    with pytest.raises(Refusal) as caught:
        config.options(given, "config")
    assert caught.value.refused.field == field
    assert said in caught.value.refused.problem
    assert caught.value.refused.remedy


@pytest.mark.parametrize(("value", "port"), [(9000, 9000), ("9000", 9000), (1, 1), (65535, 65535)])
def test_port(value: Any, port: int) -> None:
    assert config.port({"port": value}, "config") == port
    assert config.port({}, "config") is None
    assert config.port(None, "config") is None


@pytest.mark.parametrize("value", [0, 65536, -1, "x", "", None, 80.5, True, "９０", [80]])
def test_a_port_that_is_none_is_refused(value: Any) -> None:
    with pytest.raises(Refusal, match=r"config\.port: is no port"):
        config.port({"port": value}, "config")


@pytest.mark.parametrize(
    ("value", "name"), [("m", "m"), (["m", "n"], "m"), ("", None), ([], None), (7, None), (None, None)]
)
def test_served_name(value: Any, name: str | None) -> None:
    assert config.served_name({"served_model_name": value}) == name
    assert config.served_name(None) is None


def transfer(connector: object = "NixlConnector", role: object = "kv_both", text: bool = False) -> dict[str, Any]:
    inner = {"kv_connector": connector, "kv_role": role}
    return {"kv-transfer-config": json.dumps(inner) if text else inner}


def paired(prefill: Any, decode: Any) -> str | None:
    return config.connector({"decode": (decode, "decode"), "prefill": (prefill, "prefill")})


@pytest.mark.parametrize(
    ("name", "type"),
    [
        ("MooncakeConnectorV1", "mooncake"),
        ("MooncakeConnector", "mooncake"),
        ("LMCacheConnectorV1", "lmcache"),
        ("NixlConnector", "nixl"),
    ],
)
def test_connectors_that_are_known(name: str, type: str) -> None:
    assert paired(transfer(name, "kv_producer"), transfer(name, "kv_consumer", text=True)) == type


def test_connectors_of_one_type_fit_and_none_is_none() -> None:
    assert paired(transfer("MooncakeConnector"), transfer("MooncakeConnectorV1")) == "mooncake"
    assert paired(None, {}) is None
    assert paired({"kv-transfer-config": None}, {"kv-transfer-config": ""}) is None


@pytest.mark.parametrize(
    ("prefill", "decode", "field", "said"),
    [
        (transfer(), None, "decode.kv-transfer-config", "is missing"),
        (None, transfer(), "prefill.kv-transfer-config", "is missing"),
        (transfer(), transfer("LMCacheConnectorV1"), "decode.kv-transfer-config", "by lmcache"),
        (transfer(role="kv_consumer"), transfer(), "prefill.kv-transfer-config", "kv_role 'kv_consumer'"),
        (transfer(), transfer(role="kv_producer"), "decode.kv-transfer-config", "kv_role 'kv_producer'"),
        (transfer(role=None), transfer(), "prefill.kv-transfer-config", "has no kv_role"),
        (transfer(connector=None), transfer(), "prefill.kv-transfer-config", "has no kv_connector"),
        (transfer("Pigeon"), transfer(), "prefill.kv-transfer-config", "'Pigeon' is not known"),
        ({"kv-transfer-config": "{"}, transfer(), "prefill.kv-transfer-config", "is no JSON"),
        ({"kv-transfer-config": "[" * 100_000}, transfer(), "prefill.kv-transfer-config", "is no JSON"),
        ({"kv-transfer-config": "[]"}, transfer(), "prefill.kv-transfer-config", "is no object"),
    ],
)
def test_connectors_that_do_not_fit(prefill: Any, decode: Any, field: str, said: str) -> None:
    with pytest.raises(Refusal) as caught:
        paired(prefill, decode)
    assert caught.value.refused.field == field
    assert said in caught.value.refused.problem


def test_an_unknown_connector_is_told_those_that_are_known_in_order() -> None:
    with pytest.raises(Refusal, match="LMCacheConnectorV1, MooncakeConnector, MooncakeConnectorV1, NixlConnector"):
        paired(transfer("?"), transfer())


@pytest.mark.parametrize("roles", list(itertools.product(("kv_producer", "kv_both"), ("kv_consumer", "kv_both"))))
def test_roles_that_fit(roles: tuple[str, str]) -> None:
    assert paired(transfer(role=roles[0]), transfer(role=roles[1])) == "nixl"
