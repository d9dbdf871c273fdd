"""What is known of the replicas of a model's variants this tick, in tokens, and what stands in where nothing is.

Nothing is kept in a process: a variant without a reporting replica is judged by its sibling variants in the same tick,
then by its engine's arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, fsum

from modelyard.autoscaling.variants.observation import Observation
from modelyard.autoscaling.variants.saturation_config import Thresholds
from modelyard.autoscaling.variants.tokens.capacity import derived_limit, middle
from modelyard.autoscaling.variants.tokens.engine_arguments import EngineArguments, parse_engine_arguments
from modelyard.metrics.vocabulary import PodPerformance


def arguments_of(seen: Observation) -> EngineArguments:
    """The engine's arguments; its defaults where the command line is not known."""
    return parse_engine_arguments(seen.workload.engine_args if seen.workload is not None else ())


def mean_tokens(found: Sequence[PodPerformance]) -> tuple[float, float]:
    """Model-wide mean tokens of a request in and out, over replicas that know either; 0 when none does."""
    known = [p for p in found if p.prompt_tokens or p.output_tokens]
    count = max(1, len(known))
    prompts, outputs = (p.prompt_tokens or 0.0 for p in known), (p.output_tokens or 0.0 for p in known)
    return fsum(prompts) / count, fsum(outputs) / count


def memory_limit(arguments: EngineArguments, limits: Thresholds) -> int | None:
    """Tokens that the cache the arguments fix may hold; ``None`` where they fix none."""
    return floor(arguments.kv_tokens * limits.kv) if arguments.kv_tokens else None


class Known:
    """Cache sizes and capacities per replica of a model, by variant name, as far as replicas report them."""

    def __init__(self, variants: Sequence[Observation], prompt: float, output: float, limits: Thresholds) -> None:
        self._variants = {seen.name: seen for seen in variants}
        self._prompt, self._output, self._limits = prompt, output, limits
        self.totals: dict[str, list[int]] = {}
        self.live: dict[str, int] = {}
        """Median capacity of reporting replicas whose cache size is known."""

    def total(self, seen: Observation) -> int:
        """KV tokens of a replica that does not say: like its siblings, else as its arguments say, else assumed."""
        own = self.totals.get(seen.name)
        if own:
            return middle(own)
        fixed = arguments_of(seen).kv_tokens
        like = [t for s in self._like(seen) for t in self.totals.get(s.name, ())]
        known = [t for totals in self.totals.values() for t in totals]
        if like or fixed or known:
            return middle(like) or fixed or min(known)
        # Nobody knows: then one scale for all. Use of the cache is a share of it, whatever its real size.
        return arguments_of(seen).effective_batched_tokens

    def capacity(self, seen: Observation) -> int:
        if seen.name in self.live:
            return self.live[seen.name]
        arguments = arguments_of(seen)
        like = [self.live[s.name] for s in self._like(seen) if s.name in self.live]
        if like:
            return middle(like)
        memory = memory_limit(arguments, self._limits)
        derived = None
        if seen.workload is not None and seen.workload.engine_args:
            derived = derived_limit(arguments, self._prompt, self._output)
        ways = [way for way in (memory, derived) if way] or self.live.values()
        return min(ways, default=floor(arguments.effective_batched_tokens * self._limits.kv))

    def _like(self, seen: Observation) -> list[Observation]:
        """Siblings: the same accelerator, GPUs and capacity-relevant arguments."""
        mine = arguments_of(seen)
        return [
            other
            for other in self._variants.values()
            if other is not seen
            and other.accelerator == seen.accelerator
            and other.gpus == seen.gpus
            and mine.compatible(arguments_of(other))
        ]
