"""Offered load of every model over the last minutes, kept in the loop process and measured again when it is lost.

The history grows by what each tick measures anyway; one range query fills it on the first tick of a process and after
a gap, so that a restart forgets nothing and a quiet tick costs nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType

from modelyard.metrics.prometheus.client import Prometheus, PrometheusError, Sample, Series
from modelyard.metrics.vocabulary import SIZES, ModelLoad, mean_sizes, offered_load

Pair = tuple[str, str]
"""(namespace, model)"""

POINTS = 400
"""At most this many points of a history are asked for."""


class LoadHistory:
    """(time, requests per second) of each model over ``window`` seconds, one point every ``step`` seconds or so.

    ``scale`` multiplies every rate (an accelerated demonstration counts in its engines' own seconds).
    """

    def __init__(
        self, window: float, step: float, *, scale: float = 1.0, clock: Callable[[], float] = time.time
    ) -> None:
        self.window = window
        self.step = max(step, window / POINTS)
        self.scale = scale
        self._clock = clock
        self._points: dict[Pair, list[tuple[float, float]]] = {}
        self._sizes: dict[Pair, list[tuple[float, float, float]]] = {}
        self._last = float("-inf")
        self._gap = True
        self._retry_at = float("-inf")

    async def update(
        self,
        prometheus: Prometheus,
        answer: list[Sample] | None,
        load_window: float,
        namespaces: Iterable[str],
        sizes: Mapping[Pair, tuple[float, float]] = MappingProxyType({}),
        sized_in: Collection[str] = (),
    ) -> tuple[dict[Pair, ModelLoad], str | None]:
        """Take over this tick's answer to ``offered_load`` (``None``: it failed), and the mean ``sizes`` of requests,
        filling the history if needed, that of sizes for the namespaces ``sized_in``.

        The load of every model known, and why the history could not be filled. A model that is not in the answer has
        no load now (``arrivals`` is ``None``): missing is not zero.
        """
        now = self._clock()
        if now < self._last:  # the clock was set back: nothing kept can be placed in time any more
            self._points.clear()
            self._sizes.clear()
            self._gap, self._retry_at = True, float("-inf")
        problem = None
        if now - self._last > max(3 * self.step, load_window):
            self._gap = True
        if self._gap and now >= self._retry_at:
            problem = await self._fill(prometheus, now, load_window, namespaces, sized_in)
        arrivals = {model_of(s.labels): s.value * self.scale for s in answer or () if s.value is not None}
        for pair, rate in arrivals.items():
            self._points.setdefault(pair, []).append((now, rate))
        for pair, (prompt, output) in sizes.items():
            self._sizes.setdefault(pair, []).append((now, prompt, output))
        if answer is not None:
            self._last = now
        self._forget(now)
        return {
            pair: ModelLoad(arrivals.get(pair), tuple(points), tuple(self._sizes.get(pair, ())))
            for pair, points in sorted(self._points.items())
        }, problem

    async def _fill(
        self,
        prometheus: Prometheus,
        now: float,
        load_window: float,
        namespaces: Iterable[str],
        sized_in: Collection[str],
    ) -> str | None:
        self._retry_at = now + load_window

        async def ask(text: str, purpose: str) -> list[Series]:
            return await prometheus.query_range(text, purpose, now - self.window, now - self.step, self.step)

        try:
            series = await ask(offered_load(load_window, namespaces), "load history")
            sizes = [
                {
                    model_of(one.labels): dict(one.points)
                    for one in await ask(mean_sizes(signal, load_window, sized_in), of)
                }
                for signal, of in SIZES.items()
                if sized_in
            ]
        except PrometheusError as error:
            return str(error)
        self._points = {
            model_of(one.labels): [(at, value * self.scale) for at, value in one.points] for one in series if one.points
        }
        if sizes:
            prompts, outputs = sizes
            self._sizes = {
                pair: [
                    (at, prompt, output) for at, prompt in of.items() if (output := outputs[pair].get(at)) is not None
                ]
                for pair, of in prompts.items()
                if pair in outputs
            }
        self._gap = False
        return None

    def _forget(self, now: float) -> None:
        begin = now - self.window
        recent = {pair: [one for one in points if one[0] >= begin] for pair, points in self._points.items()}
        self._points = {pair: points for pair, points in recent.items() if points}
        recent_sizes = {pair: [one for one in found if one[0] >= begin] for pair, found in self._sizes.items()}
        self._sizes = {pair: found for pair, found in recent_sizes.items() if found}


def model_of(labels: Mapping[str, str]) -> Pair:
    """The namespace and model that labels name."""
    return labels.get("namespace", ""), labels.get("model_name", "")
