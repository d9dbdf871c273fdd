"""A profile that live latencies have left: whether its benchmark must be run again, or what it measured now is to be
fitted. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from modelyard.autoscaling.decisions import PROFILE_DRIFT
from modelyard.autoscaling.fleet import provenance
from modelyard.autoscaling.memory import AUTOSCALING_STATE, VariantMemory
from modelyard.autoscaling.sizing import FitError
from modelyard.benchmarks.jobs import RE_RUN, benchmark
from modelyard.benchmarks.measuring import LibraryProfile, ProfileKey, kept, patch, points
from modelyard.objects import Key, Namespace, conditions, cut, few, printable
from modelyard.profiles.fitting import TOKENS, fit_profile
from modelyard.reconcile.plans import parse_memory, refusal

MOST_SAID = 1000
"""Characters of what is said of one variant: names and scenarios are as long as their tenants like."""
_NAME = re.compile(r"[a-z0-9][-a-z0-9.]{0,252}")


class RefitFailed(Exception):
    """No profile could be fitted; the message says why."""


class ProfileDrift(NamedTuple):
    """A VariantAutoscaling whose profile has not held ``since`` then (epoch seconds), and its profile's BenchmarkJob.

    ``benchmark`` is ``None`` where the profile was fitted to none, or to one in another namespace.
    """

    variant: Key
    since: float
    benchmark: Key | None

    def is_measured(self, job: Mapping[str, Any]) -> bool:
        """Return whether its BenchmarkJob has been measured since."""
        return benchmark(job).memory.ended >= self.since

    def request(self, job: Mapping[str, Any]) -> dict[str, str]:
        """Return the annotation that requests a measurement for this drift; none while one is under way."""
        memory = benchmark(job).memory
        return {} if not memory.ended and memory.began >= self.since else {RE_RUN: f"drift-{self.since:.0f}"}


@dataclass(frozen=True, slots=True)
class Refit:
    """The new profile of a VariantAutoscaling (``patch``); without one, ``message`` says what is awaited."""

    message: str
    patch: dict[str, Any] | None = None


def drift_of(variant: Mapping[str, Any]) -> ProfileDrift | None:
    """Return the drift that a VariantAutoscaling's status reports; ``None`` where its profile holds."""
    key = Key(variant["metadata"]["namespace"], variant["metadata"]["name"])
    stored = conditions((variant.get("status") or {}).get("conditions"))
    since = next((each.last_transition for each in stored if (each.type, each.status) == (PROFILE_DRIFT, "True")), None)
    return ProfileDrift(key, since, benchmark_of(variant)) if since is not None else None


def benchmark_of(variant: Mapping[str, Any]) -> Key | None:
    """Return the BenchmarkJob that a profile was fitted to, if it is one of the same namespace."""
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
    """Return what follows for a VariantAutoscaling whose profile has not held ``since`` then, by its BenchmarkJob.

    Raises ``RefitFailed``.
    """
    one = benchmark(job)
    if one.memory.ended < since:
        return Refit(f"{one.key} is being measured again")
    if one.memory.failed:
        raise RefitFailed(f"{one.key} could not be measured again: {one.memory.failed}")
    told, batch = provenance(variant), variant["spec"]["variantProfile"]["maxBatchSize"]
    memory, _ = parse_memory(
        VariantMemory, AUTOSCALING_STATE, (variant["metadata"].get("annotations") or {}).get(AUTOSCALING_STATE)
    )
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
        raise RefitFailed(_told(f"{one.key} determines no profile: {error}", left_out)) from None
    return Refit(_told(f"fitted to {len(found.engine.points)} runs of {one.key}", left_out), body)


def _told(what: str, left_out: Sequence[str]) -> str:
    return cut(printable("; ".join([what, *few(left_out)])), MOST_SAID)
