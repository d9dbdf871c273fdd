"""Whether a model fits on accelerators, and how much cache is left there. Arithmetic over ``Facts``. Pure."""

from __future__ import annotations

import math
from typing import NamedTuple

from modelyard.models.detection.facts import Facts

OVERHEAD = 1.2
"""Memory that weights take, as a multiple of their bytes: activations, graphs and fragments come with them."""


class MemoryFit(NamedTuple):
    """The memory of a model over all its devices, in bytes; ``tokens`` is how many the KV cache can hold.

    ``fits`` is ``None`` where too little is known of the model to say; ``reason`` says it in words.
    """

    fits: bool | None
    needed: int | None
    available: int
    cache: int | None
    tokens: int | None
    reason: str


def fit(facts: Facts, device_bytes: int, devices: int = 1, tokens: int = 1) -> MemoryFit:
    """How a model lies on ``devices`` of ``device_bytes`` each that share it by tensor parallelism.

    ``tokens`` is the cache it must have room for, in tokens over all requests together.
    """
    available = device_bytes * devices
    if facts.weight_bytes is None:
        return MemoryFit(None, None, available, None, None, "the size of the weights is not known")
    weights = math.ceil(facts.weight_bytes * OVERHEAD)
    left = available - weights
    # More devices than key-value heads hold copies of them.
    copies = math.ceil(devices / facts.kv_heads) if facts.kv_heads else 1
    each = (facts.kv_bytes_per_token or 0) * copies
    needed = weights + tokens * each
    told = f"weights take {_gib(weights)} GiB of {_gib(available)} GiB on {devices} device{'s' * (devices != 1)}"
    if left < 0:
        return MemoryFit(False, needed, available, 0, 0, f"{told}: {_gib(-left)} GiB too much")
    if not each:
        return MemoryFit(True, needed, available, left, None, f"{told}; the cache of a token is not known")
    room = left // each
    told += f"; the cache holds {room} tokens"
    return MemoryFit(room >= tokens, needed, available, left, room, told if room >= tokens else f"{told}, not {tokens}")


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f}"
