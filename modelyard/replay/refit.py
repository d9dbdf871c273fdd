"""A profile that live latencies have left: whether its benchmark must be run again, or what it measured now is to be
fitted. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from modelyard.autoscaling.conditions import PROFILE_DRIFT
from modelyard.autoscaling.memory.variants import ANNOTATION, VariantMemory
from modelyard.autoscaling.provenance import provenance
from modelyard.autoscaling.sizing.fit import FitError
from modelyard.benchmarks.profiles import LibraryProfile, ProfileKey, patch, points
from modelyard.benchmarks.results import kept
from modelyard.benchmarks.world import benchmark
from modelyard.objects import Key, Namespace
from modelyard.objects.documents import cut, few, printable
from modelyard.objects.parse import conditions
from modelyard.reconcile.memory import parse_memory
from modelyard.reconcile.reach import refusal
from modelyard.replay.engine_fit import TOKENS, fit_profile

MOST_SAID = 1000
"""Characters of what is said of one variant: names and scenarios are as long as their tenants like."""
_NAME = re.compile(r"[a-z0-9][-a-z0-9.]{0,252}")


@dataclass(frozen=True, slots=True)
class Refit:
    """What is next for a VariantAutoscaling: ``re_run`` is the value with which its benchmark is asked for again,
    ``patch`` gives it the new profile; with neither, ``message`` says what is awaited; or, a ``problem``, missing."""

    message: str
    problem: bool = False
    re_run: str | None = None
    patch: dict[str, Any] | None = None


def drifted(variant: Mapping[str, Any]) -> float | None:
    """Since when (epoch seconds) live latencies have differed from the profile; ``None`` where they do not."""
    told = conditions((variant.get("status") or {}).get("conditions"))
    return next((one.last_transition for one in told if (one.type, one.status) == (PROFILE_DRIFT, "True")), None)


def in_turn(variants: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The first of each namespace, then the second of each, and so on: a fit takes minutes, and who has a thousand
    keeps nobody else waiting for all of them."""
    places = Counter[str]()

    def place(variant: Mapping[str, Any]) -> int:
        places[namespace := variant["metadata"]["namespace"]] += 1
        return places[namespace]

    return sorted(variants, key=place)


def benchmark_of(variant: Mapping[str, Any]) -> Key | None:
    """The BenchmarkJob that a profile was fitted to: none where it was not, or is in another namespace."""
    source = provenance(variant).get("source")
    namespace, _, name = source.partition("/") if isinstance(source, str) else ("", "", "")
    own = namespace == variant["metadata"]["namespace"]
    return Key(namespace, name) if own and _NAME.fullmatch(name) else None


def same_profile(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether a VariantAutoscaling has the profile that it had: a fit takes minutes, and all else of it changes."""
    return _given(before) == _given(now)


def _given(variant: Mapping[str, Any]) -> tuple[object, ...]:
    return variant["metadata"].get("uid"), variant["spec"].get("variantProfile"), provenance(variant)


class KeptAs(NamedTuple):
    """The entries of a library that a variant's profile is of; or, where the variant may not change them, why."""

    keys: tuple[ProfileKey, ...] = ()
    refused: str = ""


def kept_as(
    variant: Mapping[str, Any], library: Mapping[str, LibraryProfile], home: str, spaces: Mapping[str, Namespace]
) -> KeptAs:
    """What of the library in namespace ``home`` is of the variant's model and accelerators, and of one origin with its
    profile. ``spaces`` are the namespaces that are known: ``home`` has to let the variant's in, whose tenants write
    what their benchmarks have measured as they like."""
    spec, told = variant["spec"], provenance(variant)
    about = spec.get("modelID"), spec.get("accelerator"), spec.get("acceleratorCount") or 1
    same = (one.key for name, one in library.items() if told and one.provenance == told and one.key.name == name)
    keys = tuple(key for key in same if (key.model, key.accelerator, key.count) == about)
    why = refusal(variant["metadata"]["namespace"], home, spaces) if keys else None
    return KeptAs(keys) if why is None else KeptAs(refused=f"{', '.join(key.name for key in keys)}: {why}")


def refit(variant: Mapping[str, Any], job: Mapping[str, Any], since: float, tokens: int = TOKENS) -> Refit:
    """What is next for a VariantAutoscaling whose profile has not held ``since`` then, by its BenchmarkJob."""
    one = benchmark(job)
    wanted = f"drift-{since:.0f}"
    if one.memory.ended < since:
        if one.re_run == wanted or (not one.memory.ended and one.memory.began >= since):
            return Refit(f"{one.key} is being measured again")
        return Refit(f"{one.key} is measured again", re_run=wanted)
    if one.memory.failed:
        return Refit(f"{one.key} could not be measured again: {one.memory.failed}", problem=True)
    told, batch = provenance(variant), variant["spec"]["variantProfile"]["maxBatchSize"]
    memory, _ = parse_memory(VariantMemory, ANNOTATION, (variant["metadata"].get("annotations") or {}).get(ANNOTATION))
    kv_tokens = told.get("kvTokens")
    left_out: list[str] = []
    try:
        slo = memory.slo
        lengths = (slo.prompt_tokens, slo.output_tokens) if slo else (None, None)
        found = fit_profile(
            points(kept(job), left_out.append),
            *lengths,
            tokens=tokens,
            max_batch=batch,
            one_length=True,
            kv_tokens=kv_tokens if isinstance(kv_tokens, int) and 0 < kv_tokens < 1 << 40 else None,
            startup=memory.startup_seconds,
        )
        body = patch(found.profile, str(one.key), batch, engine=found.engine, measured=kept(job).runs[-1].started)
    except FitError as error:
        return Refit(_told(f"{one.key} determines no profile: {error}", left_out), problem=True)
    return Refit(_told(f"fitted to {len(found.engine.points)} runs of {one.key}", left_out), patch=body)


def _told(what: str, left_out: Sequence[str]) -> str:
    return cut(printable("; ".join([what, *few(left_out)])), MOST_SAID)
