"""Unit costs: cents (or any unit) per accelerator and hour; the variant's own namespace comes first.

Source: WVA SLO reference, "accelerator-unit-costs".
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from modelyard.autoscaling.configuration import Document, FleetSettings, Remarks, read_document
from modelyard.autoscaling.fleet import short_name
from modelyard.objects import Key, shown

HIGHEST = 1e12
"""A price nobody means; far beyond, a fleet's cost could not be added up."""


class UnitCosts:
    """All prices of one tick. Never raises: an entry that cannot be read is missing, and named in ``notices``."""

    def __init__(self, config_maps: Mapping[Key, Mapping[str, str]], settings: FleetSettings) -> None:
        self._config_maps = config_maps
        self._settings = settings
        self._maps: dict[str, Mapping[str, float]] = {}
        self.notices = Remarks()
        self.source = f"{settings.controller_namespace}/{settings.unit_cost_config_map}"
        """``namespace/name`` of the controller's ConfigMap, for messages."""

    def price(self, namespace: str, accelerator: str) -> float | None:
        """Cost per accelerator-hour (``None``: unlisted) by exact name, else product (``A100`` for ``NVIDIA-A100``)."""
        for where in dict.fromkeys((namespace, self._settings.controller_namespace)):
            prices = self._read(where)
            if accelerator in prices:
                return prices[accelerator]
            if (short := short_name(accelerator)) in prices:
                return prices[short]
        return None

    def _read(self, namespace: str) -> Mapping[str, float]:
        if namespace not in self._maps:
            key = Key(namespace, self._settings.unit_cost_config_map)
            data = self._config_maps.get(key)
            self._maps[namespace] = self._parse(key, data) if data else {}
        return self._maps[namespace]

    def _parse(self, key: Key, data: Mapping[str, str]) -> Mapping[str, float]:
        prices: dict[str, float] = {}
        plain = {name: text for name, text in data.items() if number(text) is not None}
        document = read_document(key, {name: text for name, text in data.items() if name not in plain}, self._settings)
        for name in sorted(plain):
            self._take(document, prices, name, plain[name], f"ConfigMap {key} key {name!r}")
        for problem in document.broken.values():
            self.notices.warn(document, f"{problem}; the accelerator has no price")
        for entry in document.entries:
            self._take(document, prices, entry.key, entry.fields.get("cost"), f"{entry.where}: cost")
        return prices

    def _take(self, document: Document, prices: dict[str, float], name: str, value: object, where: str) -> None:
        cost = number(value)
        if cost is None or cost > HIGHEST:
            text = "is missing" if value is None else f"= {shown(value)} must be a finite number of at least 0"
            self.notices.warn(document, f"{where} {text}; the accelerator has no price")
        else:
            prices[name] = cost


def number(value: object) -> float | None:
    """A finite number of at least 0 out of a number or its text, else ``None``."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) and found >= 0 else None
