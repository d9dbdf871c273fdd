"""Policies from the command line: ``default``, ``published``, ``fixed:3``, ``hpa:queue=2``, ``keda:running=20`` ..."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from pydantic import ValidationError

from modelyard.autoscaling.configuration import Compatibility, FleetSettings
from modelyard.autoscaling.offline import Manifest
from modelyard.objects import first_fault
from modelyard.replay.policies.base import Fixed, Policy
from modelyard.replay.policies.horizontal import METRICS, HPAPolicy, KEDAPolicy
from modelyard.replay.policies.modelyard import ModelyardPolicy
from modelyard.replay.settings import POLICIES

CLAIRVOYANT: Final = "clairvoyant"
KINDS: Final = ("default", "published", "fixed", "hpa", "keda", CLAIRVOYANT)


class PolicyInputError(ValueError):
    """A policy that cannot be read; the message quotes it and says what can be written."""

    exit_code = 2


@dataclass(slots=True)
class PolicyText:
    """One policy as it was written: its kind, a bare value and named ones."""

    kind: str
    value: str = ""
    options: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        parts = [part for part in (self.value, *(f"{k}={v}" for k, v in self.options.items())) if part]
        return self.kind + (":" + ",".join(parts) if parts else "")


def split(text: str) -> list[PolicyText]:
    """``hpa:queue=2,max=9,fixed:3`` as two policies: a part that begins no policy belongs to the one before it.

    Raises ``PolicyInputError``.
    """
    found: list[PolicyText] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        kind, colon, rest = part.partition(":")
        if kind in KINDS:
            found.append(PolicyText(kind))
            if not colon:
                continue
        elif not found or "=" not in part:
            raise PolicyInputError(f"--policy {part}: unknown; write {POLICIES}")
        else:
            rest = part
        name, equals, value = (piece.strip() for piece in rest.partition("="))
        if equals:
            found[-1].options[name] = value
        else:
            found[-1].value = name
    if not found:
        raise PolicyInputError(f"--policy: nothing given; write {POLICIES}")
    return found


def make(text: PolicyText, manifests: Sequence[Manifest], settings: FleetSettings) -> Policy:
    """The policy, anew: each simulation needs one of its own. Raises ``PolicyInputError`` for values that cannot be."""
    try:
        return _made(text, manifests, settings)
    except ValidationError as error:
        raise PolicyInputError(f"--policy {text}: {first_fault(error)}") from error
    except ValueError as error:
        raise PolicyInputError(f"--policy {text}: {error}; write {POLICIES}") from error


def _made(text: PolicyText, manifests: Sequence[Manifest], settings: FleetSettings) -> Policy:
    if text.kind in ("default", "published"):
        _only(text, FleetSettings.model_fields, bare=False)
        changes: dict[str, object] = {**settings.model_dump(), **text.options}
        if text.kind == "published":
            changes["compatibility"] = Compatibility.PUBLISHED
        return ModelyardPolicy(manifests, FleetSettings.model_validate(changes), str(text))
    if text.kind == "fixed":
        _only(text, (), bare=True)
        return Fixed(int(text.value) if text.value else None)
    _only(text, (*METRICS, "min", "max", *(("cooldown",) if text.kind == "keda" else ())), bare=False)
    metrics = [name for name in text.options if name in METRICS]
    if len(metrics) != 1:
        raise ValueError(f"name one metric of {', '.join(METRICS)} and its target per replica")
    target, minimum = float(text.options[metrics[0]]), text.options.get("min")
    maximum = int(text.options.get("max", 100))
    policy: HPAPolicy | KEDAPolicy
    if text.kind == "hpa":
        policy = HPAPolicy(metrics[0], target, int(minimum or 1), maximum)
    else:
        policy = KEDAPolicy(metrics[0], target, int(minimum or 0), maximum, float(text.options.get("cooldown", 300.0)))
    policy.name = str(text)
    return policy


def _only(text: PolicyText, known: Iterable[str], *, bare: bool) -> None:
    unknown = [name for name in text.options if name not in set(known)]
    if unknown:
        raise ValueError(f"unknown: {', '.join(unknown)}")
    if text.value and not bare:
        raise ValueError(f"{text.value!r} is no NAME=VALUE")
