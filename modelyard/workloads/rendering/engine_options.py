"""An engine's options from a worker's ``config``: which flags, in which order, with which values. Pure.

Source: Kthena Model controller reference, "Engine arguments" and "KV connector", with their repairs.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, Final

from modelyard.workloads.rendering.values import Problems, Refusal

Options = Mapping[str, tuple[str, ...]]
"""Values by flag, without its dashes; none for a switch."""

_FLAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,99}\Z")
_WHOLE: Final = 2.0**53
CONNECTORS: Final = {
    "LMCacheConnectorV1": "lmcache",
    "MooncakeConnector": "mooncake",
    "MooncakeConnectorV1": "mooncake",
    "NixlConnector": "nixl",
}
"""What vLLM calls what moves the KV cache, and what a ModelServer calls it."""
_ROLES: Final = {"prefill": ("kv_producer", "kv_both"), "decode": ("kv_consumer", "kv_both")}


def flag(key: str) -> str:
    """A key of ``config`` as the engine's flag, without its dashes."""
    return key.lstrip("-").replace("_", "-")


def options(
    config: Mapping[str, Any] | None, path: str, negatable: frozenset[str] = frozenset()
) -> dict[str, tuple[str, ...]]:
    """The options of a config, by name. ``negatable`` flags are switched off by ``--no-FLAG``. Raises ``Refusal``."""
    given: dict[str, tuple[str, ...]] = {}
    problems = Problems()
    seen: set[str] = set()
    for key, value in sorted((config or {}).items(), key=lambda item: (flag(item[0]), item[0])):
        name, where = flag(key), f"{path}.{key}"
        with problems.collect():
            if not _FLAG.match(name):
                raise Refusal("InvalidSpec", where, "is no name of an option", "write letters, digits, '-' and '_'")
            if name in seen:
                raise Refusal("InvalidSpec", where, f"--{name} is given twice", "keep one of the two spellings")
            seen.add(name)
            given |= _option(name, value, where, negatable)
    problems.raise_all()
    return given


def _option(name: str, value: Any, where: str, negatable: frozenset[str]) -> dict[str, tuple[str, ...]]:
    if value is None or value == []:
        return {}
    if isinstance(value, bool):
        return {name: ()} if value else {f"no-{name}": ()} if name in negatable else {}
    if value == "":
        return {name: ()}
    values = value if isinstance(value, list) else [value]
    return {name: tuple(_text(item, where) for item in values if item is not None)}


def words(given: Options) -> list[str]:
    """The options as an engine's command line has them."""
    return [word for name, values in given.items() for word in (f"--{name}", *values)]


def _text(value: Any, path: str) -> str:
    if isinstance(value, str):
        if "\0" in value:
            raise Refusal("InvalidSpec", path, "holds a NUL character", "remove it")
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        raise Refusal("InvalidSpec", path, f"{value} is no number of JSON", "write a finite number, or leave it out")
    if isinstance(value, float) and value.is_integer() and abs(value) < _WHOLE:
        return str(int(value))
    if isinstance(value, int | float):
        return str(value)
    return json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def value_of(config: Mapping[str, Any] | None, name: str) -> Any:
    """What ``config`` says of a flag, however it is spelt; ``None`` for nothing."""
    return next((value for key, value in (config or {}).items() if flag(key) == name), None)


def port(config: Mapping[str, Any] | None, path: str) -> int | None:
    """The port that a config gives; ``None`` where it gives none. Raises ``Refusal``."""
    if not any(flag(key) == "port" for key in config or {}):
        return None
    value = value_of(config, "port")
    whole = value if isinstance(value, int) and not isinstance(value, bool) else None
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,5}", value, re.ASCII):
        whole = int(value)
    if whole is None or not 1 <= whole <= 65535:
        raise Refusal("InvalidSpec", f"{path}.port", "is no port", "write a whole number from 1 to 65535")
    return whole


def served_name(config: Mapping[str, Any] | None) -> str | None:
    """The first name that a config serves the model under; ``None`` where it gives none."""
    value = value_of(config, "served-model-name")
    first = value[0] if isinstance(value, list) and value else value
    return first if isinstance(first, str) and first else None


def connector(configs: Mapping[str, tuple[Mapping[str, Any] | None, str]]) -> str | None:
    """What moves the KV cache from prefill to decode, as a ModelServer calls it; ``None`` where nothing is said.

    ``configs`` holds the config and its path for prefill and decode. Raises ``Refusal``: the two do not fit.
    """
    kinds: dict[str, str | None] = {}
    problems = Problems()
    for role in ("prefill", "decode"):
        with problems.collect():
            kinds[role] = _transfer(role, *configs[role])
    problems.raise_all()
    if kinds["prefill"] is None and kinds["decode"] is None:
        return None
    for role, kind in kinds.items():
        if kind is None:
            raise Refusal(
                "InvalidSpec",
                f"{configs[role][1]}.kv-transfer-config",
                f"is missing, and the other worker has one, so that {role} could not take part in the transfer",
                "give both workers one, or neither",
            )
    if kinds["prefill"] != kinds["decode"]:
        raise Refusal(
            "InvalidSpec",
            f"{configs['decode'][1]}.kv-transfer-config",
            f"moves the KV cache by {kinds['decode']}, the prefill worker by {kinds['prefill']}",
            "name the same kv_connector in both",
        )
    return kinds["prefill"]


def _transfer(role: str, config: Mapping[str, Any] | None, path: str) -> str | None:
    value, here = value_of(config, "kv-transfer-config"), f"{path}.kv-transfer-config"
    if value is None or value == "":
        return None
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise Refusal("InvalidSpec", here, "is no JSON", "write an object, or the text of one") from None
    if not isinstance(value, Mapping):
        raise Refusal("InvalidSpec", here, "is no object", "write an object with kv_connector and kv_role")
    name, part = value.get("kv_connector"), value.get("kv_role")
    if not isinstance(name, str) or name not in CONNECTORS:
        what = f"kv_connector {name!r} is not known" if name else "has no kv_connector"
        raise Refusal("InvalidSpec", here, what, f"write one of {', '.join(sorted(CONNECTORS))}")
    if part not in _ROLES[role]:
        what = f"kv_role {part!r} is not one of a {role} worker" if part else "has no kv_role"
        raise Refusal("InvalidSpec", here, what, f"write {' or '.join(_ROLES[role])}")
    return CONNECTORS[name]
