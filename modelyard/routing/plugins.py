"""Which filters and scorers choose the pod: one immutable value, read from the configuration or refused as a whole.

Source: kthena-routing, 12.2 and 17. What is unknown there is an error here, never skipped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

FILTERS = ("least-request", "lora-affinity")
SCORERS = (
    "least-request",
    "least-latency",
    "gpu-usage",
    "prefix-cache",
    "session-affinity",
    "queued-tokens",
    "random",
)
WITHOUT_SOURCE = {"kvcache-aware": "no source of engines' KV events is read, so it would score 0; use prefix-cache"}
"""Scorers of Kthena that are refused, and why."""


@dataclass(frozen=True, slots=True)
class Plugins:
    """The set in effect. ``scores`` are pairs of scorer and weight; ``ttft_share`` is the part of the time to the first
    token, against that between tokens, in what least-latency compares."""

    filters: tuple[str, ...] = ("least-request",)
    scores: tuple[tuple[str, float], ...] = (("least-request", 1.0), ("least-latency", 1.0), ("prefix-cache", 1.0))
    max_waiting: int = 10
    ttft_share: float = 0.5
    block_size: int = 64
    max_blocks: int = 128
    max_hashes: int = 50_000
    top_matches: int = 5


@dataclass(frozen=True, slots=True)
class Configuration:
    """The set for every ModelServer, and those of some by ``namespace/name``."""

    default: Plugins = Plugins()
    servers: Mapping[str, Plugins] = field(default_factory=dict)
    most_hashed: int = field(init=False)
    """Characters of a prompt beyond which none are looked at."""

    def __post_init__(self) -> None:
        most = max(one.block_size * one.max_blocks for one in (self.default, *self.servers.values()))
        object.__setattr__(self, "most_hashed", most)

    def of(self, server: str) -> Plugins:
        """The set for this ModelServer."""
        return self.servers.get(server, self.default)


_ARGUMENTS: Mapping[tuple[str, str], tuple[str, type, float, float]] = {
    ("least-request", "maxWaitingRequests"): ("max_waiting", int, 1, 1_000_000),
    ("least-latency", "TTFTTPOTWeightFactor"): ("ttft_share", float, 0, 1),
    ("prefix-cache", "blockSizeToHash"): ("block_size", int, 1, 65_536),
    ("prefix-cache", "maxBlocksToMatch"): ("max_blocks", int, 1, 4096),
    ("prefix-cache", "maxHashCacheSize"): ("max_hashes", int, 1, 10_000_000),
    ("prefix-cache", "topKMatches"): ("top_matches", int, 1, 1000),
}


def configuration(document: Mapping[str, Any]) -> Configuration:
    """Read ``scheduler`` and ``modelServers`` (by ``namespace/name``, each with a ``scheduler``).

    Raises ``ValueError`` naming the field: a name, an argument or a weight that is unknown or out of range. A caller
    that reloads keeps what it has then.
    """
    _only(document, {"scheduler", "modelServers", "auth"}, "the configuration")
    default = _plugins(document["scheduler"], Plugins(), "scheduler") if "scheduler" in document else Plugins()
    servers = _mapping(document.get("modelServers", {}), "modelServers")
    found = {}
    for name, one in servers.items():
        where = f"modelServers[{name}]"
        _only(_mapping(one, where), {"scheduler"}, where)
        found[name] = _plugins(one.get("scheduler", {}), default, f"{where}.scheduler")
    return Configuration(default, found)


def _plugins(value: Any, base: Plugins, where: str) -> Plugins:
    section = _mapping(value, where)
    _only(section, {"pluginConfig", "plugins"}, where)
    changed: dict[str, Any] = {}
    for index, one in enumerate(_list(section.get("pluginConfig", []), f"{where}.pluginConfig")):
        here = f"{where}.pluginConfig[{index}]"
        _only(_mapping(one, here), {"name", "args"}, here)
        _known(one.get("name"), (*FILTERS, *SCORERS), f"{here}.name")
        for argument, number in _mapping(one.get("args", {}), f"{here}.args").items():
            known = _ARGUMENTS.get((one["name"], argument))
            if known is None:
                raise ValueError(f"{here}.args: {one['name']} has no argument {argument!r}")
            name, kind, least, most = known
            changed[name] = kind(_number(number, least, most, f"{here}.args.{argument}", whole=kind is int))
    plugins = _mapping(section.get("plugins", {}), f"{where}.plugins")
    _only(plugins, {"Filter", "Score"}, f"{where}.plugins")
    if (filters := _enabled(plugins, "Filter", where)) is not None:
        changed["filters"] = tuple(_known(name, FILTERS, f"{where}.plugins.Filter") for name in filters)
    if (scores := _enabled(plugins, "Score", where)) is not None:
        here = f"{where}.plugins.Score"
        pairs = []
        for one in scores:
            _only(_mapping(one, here), {"name", "weight"}, here)
            name = _known(one.get("name"), SCORERS, here)
            pairs.append((name, _number(one.get("weight", 1), 0, 1e6, f"{here}: the weight of {name}")))
        if len(pairs) > 1:  # random says nothing beside another
            pairs = [pair for pair in pairs if pair[0] != "random"]
        changed["scores"] = tuple(pairs)
    return Plugins(**{**{name: getattr(base, name) for name in Plugins.__slots__}, **changed})


def _enabled(plugins: Mapping[str, Any], kind: str, where: str) -> Sequence[Any] | None:
    if kind not in plugins:
        return None
    here = f"{where}.plugins.{kind}"
    section = _mapping(plugins[kind], here)
    _only(section, {"enabled", "disabled"}, here)
    disabled = _list(section.get("disabled", []), f"{here}.disabled")
    enabled = _list(section.get("enabled", []), f"{here}.enabled")
    return [one for one in enabled if (one.get("name") if isinstance(one, Mapping) else one) not in disabled]


def _known(name: Any, names: Sequence[str], where: str) -> str:
    if isinstance(name, str) and name in WITHOUT_SOURCE:
        raise ValueError(f"{where}: {name!r} is not available: {WITHOUT_SOURCE[name]}")
    if name not in names:
        raise ValueError(f"{where}: no plugin {name!r}, only {', '.join(names)}")
    return str(name)


def _number(value: Any, least: float, most: float, where: str, *, whole: bool = False) -> float:
    fits = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not fits or not least <= value <= most or (whole and value != int(value)):
        raise ValueError(f"{where}: {value!r} is not a number from {least:g} to {most:g}")
    return float(value)


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{where} is not a mapping")
    return value


def _list(value: Any, where: str) -> Sequence[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{where} is not a list")
    return value


def _only(section: Mapping[str, Any], names: set[str], where: str) -> None:
    if unknown := sorted(map(str, set(section) - names)):
        raise ValueError(f"{where}: unknown {', '.join(unknown)}")
