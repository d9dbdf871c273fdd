"""Policies from the command line: ``default``, ``published``, ``fixed:3``, ``hpa:queue=2``, ``keda:running=20`` ...

Each simulation needs policies of its own, so that this gives functions that make them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from pydantic import ValidationError

from modelyard.autoscaling.offline.manifests import Manifest
from modelyard.autoscaling.settings import Compatibility, FleetSettings
from modelyard.replay.policies.base import Fixed, Policy
from modelyard.replay.policies.horizontal import METRICS, HPAPolicy, KEDAPolicy
from modelyard.replay.policies.modelyard import ModelyardPolicy
from modelyard.replay.settings import POLICIES

CLAIRVOYANT: Final = "clairvoyant"
KINDS: Final = ("default", "published", "fixed", "hpa", "keda", CLAIRVOYANT)


class PolicyInputError(ValueError):
    """A policy that cannot be read; the message quotes it and says what can be written."""


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


def factory(text: PolicyText, manifests: Sequence[Manifest], settings: FleetSettings) -> Callable[[], Policy]:
    """A function that makes the policy anew. Raises ``PolicyInputError``, at once, for values that cannot be."""

    def make() -> Policy:
        if text.kind in ("default", "published"):
            _only(text, FleetSettings.model_fields, bare=False)
            changes: dict[str, object] = {**settings.model_dump(), **text.options}
            if text.kind == "published":
                changes["compatibility"] = Compatibility.PUBLISHED
            chosen = FleetSettings.model_validate(changes)
            return ModelyardPolicy(manifests, chosen, str(text))
        if text.kind == "fixed":
            _only(text, (), bare=True)
            return Fixed(int(text.value) if text.value else None)
        extra = ("cooldown",) if text.kind == "keda" else ()
        _only(text, (*METRICS, "min", "max", *extra), bare=False)
        metrics = [name for name in text.options if name in METRICS]
        if len(metrics) != 1:
            raise ValueError(f"name one metric of {', '.join(METRICS)} and its target per replica")
        target = float(text.options[metrics[0]])
        maximum = int(text.options.get("max", 100))
        policy: HPAPolicy | KEDAPolicy
        if text.kind == "hpa":
            policy = HPAPolicy(metrics[0], target, int(text.options.get("min", 1)), maximum)
        else:
            cooldown = float(text.options.get("cooldown", 300.0))
            policy = KEDAPolicy(metrics[0], target, int(text.options.get("min", 0)), maximum, cooldown)
        policy.name = str(text)
        return policy

    try:
        make()
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise PolicyInputError(f"--policy {text}: {where}: {first['msg']}") from error
    except ValueError as error:
        raise PolicyInputError(f"--policy {text}: {error}; write {POLICIES}") from error
    return make


def _only(text: PolicyText, known: Iterable[str], *, bare: bool) -> None:
    unknown = [name for name in text.options if name not in set(known)]
    if unknown:
        raise ValueError(f"unknown: {', '.join(unknown)}")
    if text.value and not bare:
        raise ValueError(f"{text.value!r} is no NAME=VALUE")
