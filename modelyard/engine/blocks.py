"""The blocks of an engine's KV cache: how many nobody holds, and what of computed prompts is kept in them.

The prefix cache, where it is on, is part of the KV cache, as in vLLM: whole segments of computed prompts stay when
nobody holds them any more and count as free; those unused longest go first where room is needed, the tail of a prompt
before its head.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence

from modelyard.engine.request import Request


class BlockPool:
    """``free``: blocks that nobody holds. ``segment``: blocks of a segment, 0 without a prefix cache."""

    def __init__(self, blocks: int, segment: int) -> None:
        self.free = blocks
        self._segment = segment
        self._holders: dict[Hashable, int] = {}
        self._kept: OrderedDict[Hashable, None] = OrderedDict()
        """Segments that nobody holds, unused longest first."""

    def take(self, blocks: int) -> None:
        """Hold blocks that nobody held; at most ``free``."""
        self.free -= blocks
        while len(self._kept) * self._segment > self.free:
            self._kept.popitem(last=False)

    def cached(self, request: Request) -> Sequence[Hashable]:
        """The segments that a prompt begins with and that are here."""
        prefix, count = request.prefix, 0
        while count < len(prefix) and (prefix[count] in self._holders or prefix[count] in self._kept):
            count += 1
        return prefix[:count]

    def admit(self, request: Request, cached: Sequence[Hashable], blocks: int) -> bool:
        """Hold a prompt's ``blocks``, of ``cached`` segments those that are there; whether there is room."""
        blocks -= self._segment * sum(one in self._holders for one in cached)
        if blocks > self.free:
            return False
        self._hold(request, cached)
        self.take(blocks)
        return True

    def keep(self, request: Request) -> None:
        """A prompt is computed: its segments can be shared. Of one that another keeps its copy stays its own."""
        new = request.prefix[len(request.held) :]
        self._hold(request, [one for one in new if one not in self._holders and one not in self._kept])

    def release(self, request: Request, blocks: int) -> None:
        """A request gives back its ``blocks``; what others hold too is held on."""
        for one in reversed(request.held):
            self._holders[one] -= 1
            if self._holders[one]:
                blocks -= self._segment
            else:
                del self._holders[one]
                self._kept[one] = None
        request.held.clear()
        self.free += blocks

    def _hold(self, request: Request, segments: Iterable[Hashable]) -> None:
        for one in segments:
            self._kept.pop(one, None)
            self._holders[one] = self._holders.get(one, 0) + 1
            request.held.append(one)
