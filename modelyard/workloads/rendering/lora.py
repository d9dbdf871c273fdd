"""LoRA adapters on the command line of vLLM and SGLang: read which ones an engine loads, and add more. Pure.

Both engines load adapters when they start: vLLM by ``--lora-modules``, SGLang by ``--lora-paths``. An adapter is
``NAME=PATH``, or JSON where either has a character that this form is split at. Sources: vLLM's ``cli_args.py`` (a
later ``--lora-modules`` replaces an earlier one; a second ``=`` is an error) and ``config/lora.py`` (possible ranks),
SGLang's documentation of LoRA serving (it takes the largest rank from the adapters themselves).
"""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

from modelyard.objects import MAX_ARGUMENTS
from modelyard.workloads.rendering.command_line import FIELDS, commands, literals, script, words
from modelyard.workloads.rendering.engines import SGLANG, SIMULATED, VLLM, ServingEngine
from modelyard.workloads.rendering.values import Body, Refusal

PATH_VARIABLES: Final = ("FINE_TUNED_WEIGHT_PATH", "TFEW_PATH")
"""Variables that hold the folder of fine-tuned weights. A container that uses one of them loads the weights itself."""
RANKS: Final = (8, 16, 32, 64, 128, 256, 320, 512)
"""Values of vLLM's ``--max-lora-rank``."""
_DEFAULT_RANK: Final = 16
_MODULE_FLAGS: Final = ("--lora-modules", "--lora-paths")
_MODULE_FLAG: Final = re.compile(r"(?<!\S)--lora[-_](?:modules|paths)(?:=|(?=\s|$))")
_NAME_FLAG: Final = "--served-model-name"
_PLAIN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]*\Z")
_PLAIN_PATH: Final = re.compile(r"/[A-Za-z0-9._:/@+-]*\Z")
_MODULES: Final[Mapping[str, ServingEngine]] = {
    "vllm.entrypoints.openai.api_server": VLLM,
    "vllm.entrypoints.cli.main": VLLM,
    "sglang.launch_server": SGLANG,
}
_PROGRAMS: Final[Mapping[str, ServingEngine]] = {"vllm": VLLM, "sglang": SGLANG}
_INTERPRETERS: Final = re.compile(r"(?:python[0-9.]*|ray|env|sh|bash|dash|ash|zsh)\Z")
_KEYS: Final[Mapping[str, tuple[str, str]]] = {"vllm": ("name", "path"), "sglang": ("lora_name", "lora_path")}


class Adapter(NamedTuple):
    """An adapter that an engine loads. ``rank`` is 0 where it is not known."""

    name: str
    path: str
    rank: int = 0


def options(engine: ServingEngine, adapters: Iterable[Adapter]) -> dict[str, tuple[str, ...]]:
    """Return the options, by flag without dashes, with which an engine loads adapters."""
    return {"enable-lora": (), engine.lora_flag: tuple(_module(engine, adapter) for adapter in adapters)}


def _module(engine: ServingEngine, adapter: Adapter) -> str:
    if _PLAIN.match(adapter.name) and _PLAIN_PATH.match(adapter.path):
        return f"{adapter.name}={adapter.path}"
    name, path = _KEYS[engine.name]
    return json.dumps({name: adapter.name, path: adapter.path}, separators=(",", ":"), ensure_ascii=False)


def limits(engine: ServingEngine, adapters: Sequence[Adapter]) -> dict[str, str]:
    """Return the limits that an engine needs for these adapters, where its defaults are too low.

    vLLM takes one adapter into a batch and ranks up to 16 by default. SGLang takes 8, and any rank.
    """
    if engine is not VLLM:
        return {}
    result = {"max-loras": str(len(adapters))} if len(adapters) > 1 else {}
    rank = max((adapter.rank for adapter in adapters), default=0)
    if rank > _DEFAULT_RANK:
        result["max-lora-rank"] = str(next((limit for limit in RANKS if limit >= rank), RANKS[-1]))
    return result


def started_engine(container: Mapping[str, Any]) -> ServingEngine | None:
    """Return the engine that a container's command line starts, where options can be added to it; ``None``: neither.

    Without a command of its own, a container whose image is called after an engine runs that by the image's entrypoint.
    In a script that is too long, as in any other such command line, no engine is looked for.
    """
    if (shell := script(container)) is not None:
        if len(shell.text) > MAX_ARGUMENTS:
            return None
        try:
            engines = (_started(command.words) for command in commands(shell.text))
            return next((engine for engine in engines if engine is not None), None)
        except ValueError:
            return None
    line = [str(word) for field in FIELDS for word in container.get(field) or ()]
    image = re.split(r"[@]|:(?=[^/]*\Z)", str(container.get("image") or ""), maxsplit=1)[0]
    if image.startswith(SIMULATED):
        flags = set(map(_flag, line))
        named = [engine for engine in (SGLANG, VLLM) if f"--{engine.model_flag}" in flags] or [VLLM]
        return named[0] if image.endswith("engine") else None
    if (engine := _started(line)) is not None or container.get("command"):
        return engine
    if line and _INTERPRETERS.match(posixpath.basename(line[0])):
        return None
    return next((engine for name, engine in _PROGRAMS.items() if name in image.lower()), None)


def _started(line: Sequence[str]) -> ServingEngine | None:
    for word, after in pairwise([*line, ""]):
        if word == "-m" and after in _MODULES:
            return _MODULES[after]
        if after == "serve" and posixpath.basename(word) in _PROGRAMS:
            return _PROGRAMS[posixpath.basename(word)]
        path = word.removesuffix(".py").replace("/", ".") if word.endswith(".py") else ""
        for module, engine in _MODULES.items():
            if path.endswith(f".{module}"):
                return engine
    return None


def _flag(word: str) -> str:
    """Return the flag that a word is, in the spelling with dashes; other words are none."""
    return word.partition("=")[0].replace("_", "-") if word.startswith("--") else ""


def loads_itself(container: Mapping[str, Any]) -> bool:
    """Return whether a container uses the folder of the weights by one of its variables."""
    variables = container.get("env") or ()
    texts = [str(word) for field in FIELDS for word in container.get(field) or ()]
    texts += [str(variable.get("value") or "") for variable in variables]
    names = {variable.get("name") for variable in variables}
    return any(name in names or any(name in text for text in texts) for name in PATH_VARIABLES)


def loaded(container: Mapping[str, Any]) -> dict[str, str]:
    """Return the adapters on a container's command line: folder by name."""
    adapters: dict[str, str] = {}
    reading = False
    for word in words(container):
        flag, equals, value = word.partition("=")
        if word.startswith("--"):
            reading = flag.replace("_", "-") in _MODULE_FLAGS and not equals
            if not equals or flag.replace("_", "-") not in _MODULE_FLAGS:
                continue
            word = value
        elif not reading:
            continue
        elif word.startswith("-") or set(word) <= {"&", "|", ";"}:
            reading = False
            continue
        adapters |= _parsed(word.rstrip(";"))
    return adapters


def _parsed(text: str) -> dict[str, str]:
    if not text.startswith("{"):
        name, equals, path = text.partition("=")
        return {name: path} if name and equals else {}
    try:
        entry = json.loads(text)
    except ValueError:
        return {}
    pairs = ((entry.get(name), entry.get(path)) for name, path in _KEYS.values()) if isinstance(entry, dict) else ()
    return {name: path for name, path in pairs if isinstance(name, str) and isinstance(path, str) and name}


def served_names(container: Mapping[str, Any]) -> set[str]:
    """Return all names by which a container's engine serves its model."""
    names: set[str] = set()
    reading = False
    for word in words(container):
        if word.startswith("-"):
            reading = _flag(word) == _NAME_FLAG
            names |= {word.partition("=")[2]} if reading and "=" in word else set()
            reading = reading and "=" not in word
        elif reading:
            names.add(word)
    return names | {literals(container).get("SERVED_MODEL_NAME", "")} - {""}


def with_adapters(container: Body, adapters: Sequence[Adapter], field: str) -> Body:
    """Return the container with the options that load adapters; one that starts no engine stays as it is.

    Adapters that its command line loads already from the same folder are left out, and limits that it sets stay. Raises
    ``Refusal``, about ``field``, for a name that means something else to the engine.
    """
    engine = started_engine(container) if adapters else None
    if engine is None:
        return container
    present = loaded(container)
    for adapter in adapters:
        if adapter.name in served_names(container):
            problem = f"{adapter.name} is the name by which the engine serves its model"
            raise Refusal("AdapterNameInUse", field, problem, "give the engine another --served-model-name")
        if present.get(adapter.name, adapter.path) != adapter.path:
            problem = f"the runtime loads another adapter by the name {adapter.name}, from {present[adapter.name]}"
            raise Refusal("AdapterNameInUse", field, problem, "remove one of the two")
    missing = [adapter for adapter in adapters if adapter.name not in present]
    if not missing:
        return container
    total = [*missing, *(Adapter(name, path) for name, path in present.items())]
    given = {_flag(word) for word in words(container)}
    modules = options(engine, missing)[engine.lora_flag]
    added = [f"--{name}" for name in ("enable-lora",) if f"--{name}" not in given]
    added += [f"--{name}={value}" for name, value in limits(engine, total).items() if f"--{name}" not in given]
    if not given.isdisjoint(_MODULE_FLAGS):
        return with_arguments(_extended(container, modules), added)
    return with_arguments(container, [*added, f"--{engine.lora_flag}", *modules])


def with_arguments(container: Body, added: Sequence[str]) -> Body:
    """Append words to a container's command line, in a script to each command that starts an engine."""
    if not added:
        return container
    shell = script(container)
    if shell is None:
        return {**container, "args": [*(container.get("args") or ()), *added]}
    text = shell.text
    for command in reversed(list(commands(text))):
        if _started(command.words) is not None:
            text = f"{text[: command.end]} {shlex.join(added)}{text[command.end :]}"
    return shell.replaced(container, text)


def _extended(container: Body, modules: Sequence[str]) -> Body:
    """Add adapters to the flag that the command line has, as a second flag would replace it."""
    shell = script(container)
    if shell is not None:
        joined = shlex.join(modules)
        return shell.replaced(
            container, _MODULE_FLAG.sub(lambda match: f"{match[0].rstrip('=')} {joined} ", shell.text).rstrip()
        )
    result = dict(container)
    for field in FIELDS:
        if field in container:
            result[field] = []
        for word in container.get(field) or ():
            if _flag(str(word)) in _MODULE_FLAGS:
                flag, equals, value = str(word).partition("=")
                result[field] += [flag, *modules, *([value] if equals else [])]
            else:
                result[field].append(word)
    return result


def adapter_problem(kind: str, rank: int) -> tuple[str, str]:
    """Return why no engine loads weights of this kind or rank as an adapter, as reason and text; empty: engines do."""
    if not ("lora" in kind.lower() or kind.lower() in ("adapter", "peft")):
        text = f"weights of type {kind} are no LoRA adapter; merge them with the model (configuration.merged_weights)"
        return "NotAnAdapter", text
    if rank > RANKS[-1]:
        return "RankTooLarge", f"rank {rank} is above {RANKS[-1]}, the largest that engines load"
    return "", ""
