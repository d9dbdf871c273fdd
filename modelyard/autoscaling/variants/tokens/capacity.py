"""Tokens a replica holds and can hold. Pure. Source: WVA saturation reference, 'Token analyzer', 'Per replica'."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import floor
from typing import NamedTuple

from modelyard.autoscaling.variants.saturation_config import Thresholds
from modelyard.autoscaling.variants.tokens.engine_arguments import EngineArguments

WINDOW = 10
"""Values of the compute limit that are kept per length of output."""
FLOOR = 0.25
"""Repaired: the compute limit is never below this share of the memory limit. A pod with an empty cache and a queue is
slow to begin, not a pod that can hold nothing."""


class Replica(NamedTuple):
    """Tokens in the KV cache, requests waiting, mean tokens of a request (0 unknown), and data-parallel engines."""

    total: int
    in_use: int
    waiting: float
    prompt: float = 0.0
    output: float = 0.0
    engines: float = 1.0


class ReplicaCapacity(NamedTuple):
    """``demand`` and ``effective`` capacity in tokens; ``observed`` is the compute limit just seen, if any."""

    demand: float
    memory: int
    effective: int
    observed: int | None

    @property
    def saturated(self) -> bool:
        return self.demand >= self.effective


BACKLOG = 2.0
"""Repaired: what waits at a replica counts up to this multiple of what the replica holds. It is served there, however
long it takes: new replicas only take their share of what is still to come."""


def tokens_in_use(kv: float, total: int) -> int:
    """Tokens in a cache of ``total`` tokens that is used to the fraction ``kv``."""
    return min(total, max(0, round(kv * total)))


def output_bucket(output: float) -> str:
    """Class of output length, so that what was learnt on chat is not applied to long generations."""
    return "short" if output < 100 else "medium" if output < 500 else "long"


def derived_limit(arguments: EngineArguments, prompt: float, output: float) -> int | None:
    """Tokens that the requests of a full batch hold on average; ``None`` when that cannot be told."""
    batched = arguments.effective_batched_tokens
    if batched <= 0 or output <= 0:
        return None
    sequences = min(batched * output / (prompt + output), arguments.max_sequences)
    return floor(sequences * (prompt + output / 2))


def replica_capacity(
    replica: Replica,
    limits: Thresholds,
    history: Mapping[str, Sequence[float]],
    arguments: EngineArguments | None,
    floor_share: float = 0.0,
    learning: bool = True,
) -> ReplicaCapacity:
    """Demand and capacity of a replica whose ``total`` is above 0.

    The compute limit is what was in use when a queue formed (only when ``learning``), else the mean of ``history`` for
    that length of output, else what the engine's arguments give, else the memory limit. Repaired, it is at least
    ``floor_share`` of the memory limit, and what is in use; as documented (0) there is no floor.
    """
    demand = float(replica.in_use)
    if replica.prompt > 0:
        demand += replica.waiting * floor(replica.prompt)
    memory = floor(replica.total * limits.kv)
    observed = None
    if replica.in_use > 0 and replica.waiting > 0 and replica.waiting / replica.engines >= floor(limits.queue):
        observed = replica.in_use
    compute: int | None = observed if learning else None
    if compute is None and (known := history.get(output_bucket(replica.output), ())):
        compute = floor(sum(known) / len(known))
    if not compute and arguments is not None:
        compute = derived_limit(arguments, replica.prompt, replica.output)
    compute = compute or memory
    if floor_share > 0:
        demand = replica.in_use + min(demand - replica.in_use, BACKLOG * memory)
        # What is held without a queue can be held, whatever was learnt or derived before.
        compute = max(compute, floor(floor_share * memory), replica.in_use)
    return ReplicaCapacity(demand, memory, min(memory, compute), observed if learning else None)


def remember(history: Mapping[str, Sequence[float]], bucket: str, value: float) -> dict[str, list[float]]:
    """The history with one more value; the oldest goes beyond the window."""
    return {**{k: list(v) for k, v in history.items()}, bucket: [*history.get(bucket, ()), value][-WINDOW:]}


def middle(values: Sequence[int]) -> int:
    """Median; of an even count the whole part of the mean of the middle two. 0 of nothing."""
    if not values:
        return 0
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) // 2
