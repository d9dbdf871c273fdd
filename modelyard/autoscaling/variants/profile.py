"""Reading performance profiles. Source: WVA SLO reference, "The resource", "Parameters and service time"."""

from __future__ import annotations

import math
from dataclasses import dataclass

from modelyard.autoscaling.fleet import SLOSpec
from modelyard.autoscaling.sizing import MOST_BATCH, OVERHEAD

_HIGHEST = 1e7
"""Milliseconds nobody means: almost three hours for a token."""
MOST_TOKENS = 100
"""Prompt tokens that an engine computes at least in the time of a step of one request: that reads all weights once, for
which accelerators take as long as for computing with 150 to 400 tokens."""


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
        return self.alpha, self.beta, self.gamma, self.delta

    def behind(self, prompt: float, output: float) -> tuple[float, float, float, float]:
        """The engine's own α, β, γ and δ: those that are told, else what the lines say for requests of these sizes.

        An idle engine's first token takes its prompt, a step and ``OVERHEAD``. Where γ alone is more, the lines were
        laid through latencies under load: what a prompt takes is in γ, and what prompts delay those who decode in β.
        δ then follows from the first token, as far as a full batch's step has room for so many prompts; what else is
        longer in that step is β's. More of γ than a prompt can take is no prompt's.
        """
        more = self.gamma - self.alpha - OVERHEAD
        if self.engine is not None or more <= 0 or prompt <= 0 or self.beta <= 0:
            return self.engine or self.parameters
        first, step = self.gamma + self.delta * prompt * self.max_batch, self.alpha + self.beta * self.max_batch
        rate = self.max_batch / (first + output * step)
        room = min((1 - self.alpha / step) / (rate * prompt), self.alpha / MOST_TOKENS)
        if room <= self.delta:  # these lines know nothing of prompts beside decoding: they are the engine's own
            return self.parameters
        delta = min(self.delta + more / prompt, room)
        beta = (step * (1 - rate * delta * prompt) - self.alpha) / (rate * max(output, 1.0) * step)
        gamma = self.gamma - self.alpha - (delta - self.delta) * prompt
        return self.alpha, min(self.beta, max(beta, 0.0)), gamma, delta


class ProfileInvalid(ValueError):
    """A profile that cannot be sized with; the text names every wrong key and what it must be."""


def parse_profile(spec: SLOSpec) -> Profile:
    """The profile of a variant; ``ProfileInvalid`` names everything that is wrong at once."""
    problems: list[str] = []
    values: dict[str, float] = {}
    for name in ("alpha", "beta", "gamma", "delta"):
        field, mapping = ("decodeParms", spec.decode) if name in ("alpha", "beta") else ("prefillParms", spec.prefill)
        where, text = f"spec.variantProfile.perfParms.{field}.{name}", mapping.get(name)
        must = "above 0" if name == "alpha" else "at least 0"
        if text is None:
            problems.append(f"{where} is missing: add the measured number, {must}, in milliseconds")
            continue
        try:
            value = float(text)
        except (TypeError, ValueError):
            value = math.nan
        values[name] = value
        if not (value > 0 if name == "alpha" else value >= 0) or value > _HIGHEST:
            problems.append(f"{where} = {text!r} must be a finite number of {must}, in milliseconds")
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
    text = f"spec.variantID = {spec.variant_id!r} does not say what the fields say ({expected!r})"
    return f"{text}; the fields count: change one of them"
