"""Reading a variant's performance profile: four numbers written as text, and whether they can be true.

Source: WVA SLO reference, "The resource" and "Parameters and service time".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from modelyard.autoscaling.fleet import SLOSpec

_HIGHEST = 1e7
"""Milliseconds nobody means: almost three hours for a token."""

MOST_BATCH = 65_536


@dataclass(frozen=True, slots=True)
class Profile:
    """One replica's speed: decode(n) = ``alpha`` + ``beta``·n and prefill(n) = ``gamma`` + ``delta``·tokens·n, in ms.

    ``max_batch`` is the most requests one replica works on at the same time. ``engine`` are the four of the engine
    itself: a step takes α, with β for each request that decodes and δ for each prompt token, and γ for each prompt.
    The lines are laid through what it does under load, so that what prompts delay decoding is in β.
    """

    alpha: float
    beta: float
    gamma: float
    delta: float
    max_batch: int
    engine: tuple[float, float, float, float] | None = None

    @property
    def parameters(self) -> tuple[float, float, float, float]:
        """The four."""
        return self.alpha, self.beta, self.gamma, self.delta


class ProfileInvalid(ValueError):
    """A profile that cannot be sized with; the text names every wrong key and what it must be."""


def parse_profile(spec: SLOSpec) -> Profile:
    """The profile of a variant; ``ProfileInvalid`` names everything that is wrong at once."""
    problems: list[str] = []
    values: dict[str, float] = {}
    for field, name, mapping in (
        ("decodeParms", "alpha", spec.decode),
        ("decodeParms", "beta", spec.decode),
        ("prefillParms", "gamma", spec.prefill),
        ("prefillParms", "delta", spec.prefill),
    ):
        where = f"spec.variantProfile.perfParms.{field}.{name}"
        text = mapping.get(name)
        must = "above 0" if name == "alpha" else "at least 0"
        if text is None:
            problems.append(f"{where} is missing: add the measured number, {must}, in milliseconds")
            continue
        try:
            value = float(text)
        except (TypeError, ValueError):
            value = math.nan
        if not (value > 0 if name == "alpha" else value >= 0) or value > _HIGHEST:
            problems.append(f"{where} = {text!r} must be a finite number of {must}, in milliseconds")
            continue
        values[name] = value
    if not 1 <= spec.max_batch <= MOST_BATCH:
        where = "spec.variantProfile.maxBatchSize"
        problems.append(f"{where} = {spec.max_batch} must be between 1 and {MOST_BATCH} (the engine's --max-num-seqs)")
    if problems:
        raise ProfileInvalid("; ".join(problems))
    return Profile(values["alpha"], values["beta"], values["gamma"], values["delta"], spec.max_batch, spec.engine)


def identity_mismatch(spec: SLOSpec, model_id: str) -> str | None:
    """What in ``variantID`` disagrees with the fields it is made of, or ``None``."""
    expected = f"{model_id}-{spec.accelerator}-{spec.accelerator_count}"
    if spec.variant_id == expected:
        return None
    return (
        f"spec.variantID = {spec.variant_id!r} does not say what the fields say ({expected!r}); "
        "the fields count: change one of them"
    )
