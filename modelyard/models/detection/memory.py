"""Whether a model fits on accelerators, and how much cache is left there. Arithmetic over ``Facts``. Pure."""

from __future__ import annotations

import math
from typing import NamedTuple

from modelyard.models.detection.facts import Facts

OVERHEAD = 1.2
"""Memory that weights take, as a multiple of their bytes: activations, graphs and fragments come with them."""


class MemoryFit(NamedTuple):
    """True where a model fits, ``None`` where too little of it is known; ``reason`` is the arithmetic in words."""

    fits: bool | None
    reason: str


class CacheCost(NamedTuple):
    """Bytes of the KV cache by tokens: each token's in all layers, as far as a window reaches, and beyond it.

    A request never keeps more in a layer with a window than the window. Tokens beyond the context length belong to
    further requests, which cost what one of that length costs.
    """

    token: int
    windowed: int = 0
    window: int = 0
    context: int = 0

    def bytes_for(self, tokens: int) -> int:
        """Return the bytes that so many tokens take: one request, or where they are more than one may have, several."""
        if self.context and tokens > self.context:
            return -(-tokens * self._of_request(self.context) // self.context)
        return self._of_request(tokens)

    def tokens_in(self, room: int) -> int:
        """Return how many tokens so many bytes hold, the most for which ``bytes_for`` is no larger."""
        inside = self._of_request(self.window)
        if not self.windowed or room < inside:
            return room // self.token
        if self.context and room >= (most := self._of_request(self.context)):
            return room * self.context // most
        unlimited = self.token - self.windowed
        return self.window + (room - inside) // unlimited if unlimited else room // self.token

    def _of_request(self, tokens: int) -> int:
        return tokens * (self.token - self.windowed) + min(tokens, self.window) * self.windowed


def cache_cost(facts: Facts, copies: int = 1) -> CacheCost | None:
    """Return what a token's cache costs where ``copies`` of each head are kept; ``None`` where it is not known."""
    if not facts.kv_bytes_per_token:
        return None
    window, context = facts.sliding_window or 0, facts.context_length or 0
    windowed = facts.kv_window_bytes_per_token or 0
    token = facts.kv_bytes_per_token + windowed
    if not windowed and window:
        windowed = token  # every layer has a window
    if not window or (context and window >= context):
        window = windowed = 0
    return CacheCost(token * copies, windowed * copies, window, context)


def fit(facts: Facts, device_bytes: int, devices: int = 1, tokens: int = 1) -> MemoryFit:
    """Lay a model on ``devices`` of ``device_bytes`` (tensor parallelism) with cache for ``tokens`` of all requests."""
    available = device_bytes * devices
    if facts.weight_bytes is None:
        return MemoryFit(None, "the size of the weights is not known")
    weights = math.ceil(facts.weight_bytes * OVERHEAD)
    left = available - weights
    # More devices than key-value heads hold copies of them.
    cost = cache_cost(facts, math.ceil(devices / facts.kv_heads) if facts.kv_heads else 1)
    told = f"weights take {_gib(weights)} GiB of {_gib(available)} GiB on {devices} device{'s' * (devices != 1)}"
    if left < 0:
        return MemoryFit(False, f"{told}: {_gib(-left)} GiB too much")
    if cost is None:
        return MemoryFit(True, f"{told}; the cache of a token is not known")
    told += f"; the cache holds {cost.tokens_in(left)} tokens"
    is_enough = cost.bytes_for(tokens) <= left
    return MemoryFit(is_enough, told if is_enough else f"{told}, not {tokens}")


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f}"
