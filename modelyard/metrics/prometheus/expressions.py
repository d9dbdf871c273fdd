"""What owners of objects ask Prometheus themselves: pending demand at zero, and metrics of bindings.

Such PromQL is written by tenants and runs with the controller's credentials. So it sees its own namespace only, has a
connection of its own with few threads and a deadline, and no namespace more than its share of them: who is slow waits
behind the others the next time. Equal expressions of a namespace are asked once, and a broken one hurts only what it
stands for. An empty answer is no knowledge, not zero.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from operator import attrgetter
from typing import Self, TypeVar

from modelyard.fairness import interleave
from modelyard.metrics.prometheus.client import Prometheus, PrometheusError, PrometheusTimeout, Sample
from modelyard.metrics.vocabulary import Allowed, Answers, Expression, scoped
from modelyard.objects import Key, shown
from modelyard.resources import WAKE_QUERY

_T = TypeVar("_T")

MOST = 20
"""Distinct expressions of one namespace that are asked at a time; what is beyond is named, not asked."""
AT_ONCE = 2
"""Of one namespace."""
PLACES = 32
"""Of all."""
SECONDS = 3.0
"""Limit of one expression."""
TOTAL_SECONDS = 6.0
"""Limit of all that are asked together."""
MAX_ANSWER = 2**20
"""Bytes of an answer."""


class Expressions:
    """Where expressions of owners are asked. ``async with Expressions(prometheus, allowed) as expressions``.

    ``prometheus``: the server to connect to as well, or why there is none.
    """

    def __init__(self, prometheus: Prometheus | PrometheusError, allowed: Allowed = Allowed.OWN) -> None:
        self.allowed = allowed
        self._prometheus = prometheus
        if isinstance(prometheus, Prometheus):
            hasty = prometheus.settings.model_copy(update={"timeout": SECONDS, "attempts": 1})
            # What is given up keeps its thread until its own time is over; meanwhile others have their places.
            self._prometheus = Prometheus(hasty, threads=2 * PLACES, max_answer=MAX_ANSWER)
        self._gates: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(AT_ONCE))
        self._places = asyncio.Semaphore(PLACES)
        self._slow: dict[str, None] = {}
        """Namespaces of which an expression had no answer in time; whose turn that was last comes last."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if isinstance(self._prometheus, Prometheus):
            await self._prometheus.__aexit__()

    async def samples(self, one: Expression) -> list[Sample]:
        """What an expression gives. Raises ``PrometheusError``."""
        if isinstance(self._prometheus, PrometheusError):
            raise self._prometheus
        if self.allowed is Allowed.NONE:
            raise PrometheusError("expressions of owners are switched off (fleet setting expressions)")
        try:
            text = scoped(one.text, one.namespace) if self.allowed is Allowed.OWN else one.text
        except ValueError as error:
            raise PrometheusError(f"{shown(one.text)} {error}") from None
        async with self._gates[one.namespace], self._places:
            try:
                found = await self._prometheus.query(text, f"an expression in {one.namespace}")
            except PrometheusTimeout:
                self._slow.pop(one.namespace, None)
                self._slow[one.namespace] = None
                raise
        self._slow.pop(one.namespace, None)
        return found

    async def number(self, one: Expression) -> float:
        """A binding's expression, which must give one number: a scalar or one element. Raises ``PrometheusError``."""
        samples = await self.samples(one)
        if len(samples) != 1:
            found = "nothing" if not samples else f"{len(samples)} series"
            raise PrometheusError(
                f"the query gives {found}; it must give one number (aggregate it, for example with sum())"
            )
        if (value := samples[0].value) is None:
            raise PrometheusError("the query gives no finite number")
        return value

    async def total(self, one: Expression) -> float | None:
        """A wake expression: the sum of what it gives; ``None`` when it gives nothing. Raises ``PrometheusError``."""
        values = [sample.value for sample in await self.samples(one) if sample.value is not None]
        return sum(values) if values else None

    async def numbers(self, wanted: Iterable[Expression]) -> Answers:
        """Bindings' expressions."""
        return await self._all(wanted, self.number)

    async def totals(self, wanted: Mapping[Key, str]) -> tuple[dict[Key, float], dict[Key, str]]:
        """Wake expressions by variant: what each gives, or why it gave an error."""
        asked = {key: Expression(key.namespace, text.strip()) for key, text in sorted(wanted.items())}
        answers = await self._all(asked.values(), self.total)
        found: dict[Key, float] = {}
        problems: dict[Key, str] = {}
        for key, one in asked.items():
            answer = answers[one]
            if isinstance(answer, str):
                what = f"VariantAutoscaling {key}: annotation {WAKE_QUERY}: {answer}"
                problems[key] = f"{what}; correct the expression or remove the annotation"
            elif answer is not None:
                found[key] = answer
        return found, problems

    async def _all(
        self, wanted: Iterable[Expression], ask: Callable[[Expression], Awaitable[_T]]
    ) -> dict[Expression, _T | str]:
        """Ask all of these, those of slow namespaces last; what went wrong is a text."""
        chosen, beyond = interleave(sorted(set(wanted)), attrgetter("namespace"), MOST)
        slow = {namespace: place for place, namespace in enumerate(self._slow)}
        chosen.sort(key=lambda one: slow.get(one.namespace, -1))
        found: dict[Expression, _T | str] = {}

        async def answer(one: Expression) -> None:
            try:
                found[one] = await ask(one)
            except PrometheusError as error:
                found[one] = str(error)

        tasks = [asyncio.create_task(answer(one)) for one in chosen]
        if tasks:
            await asyncio.wait(tasks, timeout=TOTAL_SECONDS)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        late = f"no answer within the {TOTAL_SECONDS:g} s for all expressions of a tick"
        found |= {one: late for one in chosen if one not in found}
        return found | {one: f"more than {MOST} different expressions in {one.namespace}; not asked" for one in beyond}
