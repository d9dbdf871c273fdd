"""What a router asks of others while it decides about one request: who asks, whether the budget allows it, whose turn
it is. Pure.

The order of a request: ``TokenAdmission.authenticate`` -> the route is found -> ``TokenAdmission.allows`` ->
``RedisLimits.admit`` -> ``UserQueues.turn`` (held until the answer has ended) -> pods are chosen -> it is sent ->
``RedisLimits.settle``. None of them may hold up the loop; each bounds its own time and says what its failure means, and
what it raises is the request's end with a 500.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from modelyard.routing.errors import ErrorAnswer


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


class NotServed(Exception):
    """A request is not served now."""

    def __init__(self, answer: ErrorAnswer) -> None:
        super().__init__(answer.message)
        self.answer = answer
