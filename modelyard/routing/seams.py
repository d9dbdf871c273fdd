"""What a router asks of others while it decides about one request: who asks, whether the budget allows it, whose turn
it is. Budgets are a protocol, so that a router on its own and a fleet that shares them differ in nothing else. Pure.

The order of a request: ``TokenAdmission.authenticate`` -> the route is found -> ``TokenAdmission.allows`` ->
``LimitStore.admit`` -> ``FairTurns.turn`` (held until the answer has ended) -> pods are chosen -> it is sent ->
``LimitStore.settle``. None of them may hold up the loop; each bounds its own time and says what its failure means, and
what it raises is the request's end with a 500.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from modelyard.objects import Key
from modelyard.routing.errors import ErrorAnswer
from modelyard.routing.limits import OverBudget
from modelyard.routing.objects import Route


class Principal(NamedTuple):
    """Who sent a request; an empty ``subject`` is nobody in particular. ``consumed``: the headers, in lower case, that
    were meant for the router alone and are not passed on."""

    subject: str = ""
    claims: Mapping[str, object] = {}
    consumed: frozenset[str] = frozenset()


class Left(NamedTuple):
    """Tokens that are left of a route's budget for input and output; ``None``: no limit."""

    input: float | None = None
    output: float | None = None


class LimitStore(Protocol):
    """The token budgets of all routes, by the route's namespace and name."""

    def configure(self, route: Key, now: Route | None) -> None:
        """Make the budget that of the route as it is now; ``None``: it is gone. In the order of the changes."""

    async def admit(self, route: Key, tokens: int) -> Left | OverBudget:
        """Check all, then take ``tokens`` of input; what is left then, or which budget forbids it."""

    async def settle(self, route: Key, estimated: int, real: int | None, output: int) -> None:
        """After the answer: put the estimate right where the engine told the real number, and charge the output.

        Of a request that reached no engine both are 0: it gets back what ``admit`` took. Done to its end even where who
        waits for it is cancelled.
        """


class NotServed(Exception):
    """A request is not served now."""

    def __init__(self, answer: ErrorAnswer) -> None:
        super().__init__(answer.message)
        self.answer = answer
