"""Which LoRA adapters a running engine is to load and unload, from what it should have and what it lists. Pure.

Source: Kthena Model controller reference, "Live LoRA changes": adapters are a set of their own, reconciled pod by pod.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from modelyard.workloads.kthena.files import AdapterFiles

LOAD: Final = "/v1/load_lora_adapter"
UNLOAD: Final = "/v1/unload_lora_adapter"


class Call(NamedTuple):
    """One request to the engine. ``fetch`` is what must be on disk before it is made."""

    path: str
    body: Mapping[str, str]
    fetch: AdapterFiles | None = None


def wanted(text: str, root: str) -> tuple[AdapterFiles, ...]:
    """The adapters that a list file names. Those whose folder is not below ``root`` are left out. Raises ValueError."""
    found = json.loads(text)
    if not isinstance(found, list):
        raise ValueError("the list of adapters is no list")
    adapters = {}
    for one in found:
        name, source, path = (_text(one, key) for key in ("name", "source", "path"))
        if name and source and posixpath.normpath(path) == path and path.startswith(f"{root.rstrip('/')}/"):
            adapters[name] = AdapterFiles(name, source, path)
    return tuple(adapters.values())


def _text(entry: Any, key: str) -> str:
    value = entry.get(key) if isinstance(entry, Mapping) else None
    return value if isinstance(value, str) else ""


def loaded(page: Any) -> dict[str, str]:
    """The adapters of an engine's list of models: folder by name. A base model has no parent."""
    models = page.get("data") if isinstance(page, Mapping) else None
    found = {}
    for one in models if isinstance(models, list) else ():
        if isinstance(one, Mapping) and one.get("parent") and isinstance(one.get("id"), str):
            found[one["id"]] = str(one.get("root") or "")
    return found


def calls(adapters: Iterable[AdapterFiles], there: Mapping[str, str]) -> tuple[Call, ...]:
    """What to ask of an engine that has ``there``: unload what is not wanted or comes from elsewhere now, then load."""
    should = {one.name: one for one in adapters}
    stale = [name for name, path in there.items() if name not in should or path not in ("", should[name].path)]
    missing = [one for name, one in should.items() if name not in there or name in stale]
    unload = [Call(UNLOAD, {"lora_name": name}) for name in sorted(stale)]
    load = [Call(LOAD, {"lora_name": one.name, "lora_path": one.path}, one) for one in missing]
    return (*unload, *load)
