"""Which pods of a ModelServer should answer a request, best first: filters, scorers, prefill and decode paired.

Pure: time is an argument and chance is injected. Source: kthena-routing, 12 and 15.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from heapq import nlargest
from operator import add
from random import Random
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from modelyard.objects import Key
from modelyard.routing.plugins import Plugins

Floats = NDArray[np.float64]

MOST_RANKED = 5
STALE_AFTER = 10.0
"""Seconds after which what an engine told about itself says nothing any more."""
_LAST = 1e12
UNREACHABLE_AFTER = 3
"""Rounds of reading metrics in a row that failed, after which a pod is tried last."""
_MOST_KEPT = 256


class EngineGauges(NamedTuple):
    """Latest load of an engine. Times in seconds, 0 without data; ``usage`` of the KV cache from 0 to 1.

    NaN: its metrics page lacks the gauge.
    """

    at: float
    waiting: float = 0.0
    running: float = 0.0
    usage: float = 0.0
    ttft: float = 0.0
    tpot: float = 0.0


@dataclass(slots=True, eq=False)
class RoutedPod:
    """A ready pod bound to a ModelServer. ``outstanding`` are the requests sent there and not ended, ``elsewhere``
    those that other replicas of the router sent, ``queued_tokens`` the prompt tokens of those of ours without a first
    token, ``failed`` the rounds of metrics in a row that failed."""

    key: Key
    url: str
    group: str = ""
    models: frozenset[str] = frozenset()
    gauges: EngineGauges | None = None
    failed: int = 0
    outstanding: int = 0
    queued_tokens: int = 0
    identity: str = ""
    """Changes with the pod's process and address."""
    elsewhere: int = 0

    @property
    def address(self) -> str:
        """Its host and port."""
        return self.url.partition("://")[2]

    @property
    def host(self) -> str:
        """Its host alone."""
        return self.address.rpartition(":")[0].strip("[]")


class Context(NamedTuple):
    """The parts of a request that the choice depends on."""

    upstream_model: str = ""
    lora: bool = False
    hashes: Sequence[int] = ()
    last_pod: Key | None = None


class Attempt(NamedTuple):
    """One way to an answer: the pod that gives it, and the pod that computes the prompt before it, if that is apart.
    ``points`` are those of each scorer for the answering pod, weight included."""

    pod: RoutedPod
    prefill: RoutedPod | None = None
    points: Mapping[str, float] = {}


class FilteredOut(Exception):
    """Nothing is left after a filter."""


def average(before: tuple[float, float] | None, now: tuple[float, float], last: float = 0.0) -> float:
    """Mean of a histogram since it was read last, from (sum, count) then and now.

    0 at the first reading; ``last`` where nothing was added; the mean of the new process after a restart. Source: 13.
    """
    if before is None:
        return 0.0
    total, count = (now[0] - before[0], now[1] - before[1])
    if total < 0 or count < 0:
        total, count = now
        return total / count if count else 0.0
    return total / count if count else last


def prefix_hashes(model: str, prompt: str, plugins: Plugins) -> list[int]:
    """One hash for each block of the prompt, each over all before it too; none for an empty prompt."""
    size = plugins.block_size
    # A character takes at least a byte, so this many characters hold every block that counts.
    text = prompt[: size * plugins.max_blocks].encode("utf-8", "replace")[: size * plugins.max_blocks]
    digest = xxhash.xxh64_intdigest
    chain = digest(model)
    return [chain := digest(b"%d%b" % (chain, text[at : at + size])) for at in range(0, len(text), size)]


class PrefixCache:
    """Which pods have answered which prefixes: for each pod the ``capacity`` hashes used last."""

    def __init__(self, capacity: int = 50_000) -> None:
        self.size = 0
        """Hashes of all pods together."""
        self._capacity = capacity
        self._by_pod: dict[Key, OrderedDict[int, None]] = {}
        # Most have one owner, and a set takes more than all else of an entry.
        self._owners: dict[int, Key | set[Key]] = {}

    def learn(self, pod: Key, hashes: Sequence[int]) -> None:
        """A pod has answered a prompt; its head counts as used last."""
        mine = self._by_pod.setdefault(pod, OrderedDict())
        before = len(mine)
        for one in reversed(hashes):
            if one in mine:
                mine.move_to_end(one)
                continue
            mine[one] = None
            owners = self._owners.setdefault(one, pod)
            if isinstance(owners, set):
                owners.add(pod)
            elif owners != pod:
                self._owners[one] = {owners, pod}
            if len(mine) > self._capacity:
                self._disown(mine.popitem(last=False)[0], pod)
        self.size += len(mine) - before

    @property
    def pods(self) -> list[Key]:
        """Those that have answered something."""
        return list(self._by_pod)

    def forget(self, pod: Key) -> None:
        """A pod is gone, or is another process now."""
        mine = self._by_pod.pop(pod, OrderedDict())
        self.size -= len(mine)
        for one in mine:
            self._disown(one, pod)

    def matches(self, hashes: Sequence[int], among: Set[Key], most: int) -> dict[Key, int]:
        """Blocks that each pod has from the first one on, for the ``most`` pods with the longest matches."""
        found: dict[Key, int] = {}
        most, seen = min(most, len(among)), None
        for index in range(len(hashes) - 1, -1, -1):
            owners = self._owners.get(hashes[index])
            if owners is None or owners is seen:  # mostly one pod has all that it has in a row
                continue
            seen = owners
            for pod in (owners,) if isinstance(owners, Key) else owners:
                if pod in among and pod not in found:
                    found[pod] = index + 1
                    if len(found) == most:
                        return found
        return found

    def _disown(self, one: int, pod: Key) -> None:
        owners = self._owners[one]
        if isinstance(owners, set):
            owners.discard(pod)
        if not owners or owners == pod:
            del self._owners[one]


class PrefixCaches:
    """Those of all ModelServers: of each namespace ``most`` hashes, some 250 bytes each. Of more, those of the pod that
    answered longest ago are forgotten, since servers and pods are as many as a tenant makes."""

    def __init__(self, most: int = 1_000_000) -> None:
        self._most = most
        self._of: dict[Key, PrefixCache] = {}
        self._sizes: dict[str, int] = {}
        self._answered: dict[str, OrderedDict[tuple[Key, Key], None]] = {}

    def of(self, server: Key, capacity: int) -> PrefixCache:
        """That of a server; ``capacity`` is for a new one."""
        return self._of.get(server) or self._of.setdefault(server, PrefixCache(capacity))

    def learn(self, server: Key, pod: Key, hashes: Sequence[int]) -> None:
        """A pod of a server has answered a prompt."""
        cache = self._of.get(server)
        if cache is None or not hashes:
            return
        space, before = server.namespace, cache.size
        cache.learn(pod, hashes)
        self._sizes[space] = self._sizes.get(space, 0) + cache.size - before
        order = self._answered.setdefault(space, OrderedDict())
        order[server, pod] = None
        order.move_to_end((server, pod))
        while self._sizes[space] > self._most and len(order) > 1:
            self.forget(*next(iter(order)))

    def forget(self, server: Key, pod: Key) -> None:
        """A pod is gone, or is another process now."""
        self._answered.get(server.namespace, OrderedDict()).pop((server, pod), None)
        if (cache := self._of.get(server)) is not None:
            before = cache.size
            cache.forget(pod)
            self._sizes[server.namespace] = self._sizes.get(server.namespace, 0) + cache.size - before

    def close(self, server: Key) -> None:
        """A server is gone."""
        cache = self._of.get(server)
        for pod in cache.pods if cache else ():
            self.forget(server, pod)
        self._of.pop(server, None)


def least_request(bases: Sequence[float]) -> list[float]:
    """100 for no load, 0 for the highest, from ``running + 100 * waiting`` of each."""
    most = max(bases)
    return [(most - one) / most * 100 // 1 for one in bases] if most > 0 else [100.0] * len(bases)


def least_latency(ttft: Floats, tpot: Floats, ttft_share: float) -> Floats:
    """100 for the fastest, 0 for the slowest, 50 for one without data, from TTFT and TPOT of each."""
    known = (ttft > 0) & (tpot > 0)
    points = np.full(len(ttft), 50.0)
    if known.any():
        points[known] = np.floor(ttft_share * _part(ttft[known]) + (1 - ttft_share) * _part(tpot[known]))
    return points


def _part(values: Floats) -> Floats:
    low, high = values.min(), values.max()
    return 100.0 * (high - values) / (high - low) if high > low else np.full(len(values), 100.0)


def gpu_usage(usage: Floats) -> Floats:
    """100 for an empty KV cache, 0 for a full one."""
    return np.floor((1 - np.clip(usage, 0.0, 1.0)) * 100)


@dataclass(slots=True)
class PodStanding:
    """What engines told last, worked out once for all requests until one of them tells something new.

    ``kept`` are the pods that pass the filters on it, ``waiting`` and ``running`` theirs, ``points`` those of scorers
    that look at nothing else, weight included, ``total`` their sum. Holds from ``since`` until ``until``. Lists, since
    pods are few and a pick is one of thousands a second: below a hundred pods arrays take longer.
    """

    replicas: list[RoutedPod]
    gauges: list[EngineGauges | None]
    failed: list[int]
    plugins: Plugins
    since: float
    until: float
    kept: list[RoutedPod]
    places: dict[Key, int]
    waiting: list[float]
    running: list[float]
    points: dict[str, list[float]]
    total: list[float]

    @classmethod
    def of(cls, replicas: list[RoutedPod], plugins: Plugins, now: float) -> PodStanding:
        """The standing of these pods now. What an engine does not say, or told too long ago, is the others' median."""
        gauges = [one.gauges for one in replicas]
        fresh = [one is not None and now - one.at <= STALE_AFTER for one in gauges]
        told = np.zeros((len(replicas), len(EngineGauges._fields) - 1))
        if any(fresh):
            told[fresh] = [gauge[1:] for gauge, counts in zip(gauges, fresh, strict=True) if gauge and counts]
            for column in told.T:
                given = np.array(fresh) & ~np.isnan(column)
                if not given.all():
                    column[~given] = np.median(column[given]) if given.any() else 0.0
        waits = "least-request" in plugins.filters
        keep = np.flatnonzero(told[:, 0] < plugins.max_waiting) if waits else np.arange(len(replicas))
        kept = [replicas[index] for index in keep]
        waiting, running, usage, ttft, tpot = told[keep].T
        points: dict[str, list[float]] = {}
        # Those that cannot be reached are tried last.
        total = [-_LAST if one.failed >= UNREACHABLE_AFTER else 0.0 for one in kept]
        for name, weight in plugins.scores:
            if name == "least-latency":
                scores = weight * least_latency(ttft, tpot, plugins.ttft_share)
            elif name == "gpu-usage":
                scores = weight * gpu_usage(usage)
            else:
                continue
            points[name] = scores.tolist()
            total = list(map(add, total, points[name]))
        until = min(
            (one.at + STALE_AFTER for one, counts in zip(gauges, fresh, strict=True) if one and counts), default=now
        )
        failed = [one.failed for one in replicas]
        places = {one.key: place for place, one in enumerate(kept)}
        lists = waiting.tolist(), running.tolist(), points, total
        return cls(replicas, gauges, failed, plugins, now, until, kept, places, *lists)

    def holds(self, replicas: list[RoutedPod], plugins: Plugins, now: float) -> bool:
        """Whether this is the standing of these pods at that time too."""
        return (
            self.plugins is plugins
            and self.since <= now <= self.until
            and self.replicas == replicas
            and self.gauges == [one.gauges for one in replicas]
            and self.failed == [one.failed for one in replicas]
        )


class Memo:
    """The standings of one ModelServer's pods from pick to pick: changes what a pick costs, not what it gives."""

    def __init__(self) -> None:
        self._standings: dict[tuple[str, str], PodStanding] = {}

    def standing(self, slot: tuple[str, str], replicas: list[RoutedPod], plugins: Plugins, now: float) -> PodStanding:
        """The standing of these pods, worked out anew where what was kept under ``slot`` holds no more."""
        kept = self._standings.get(slot)
        if kept is None or not kept.holds(replicas, plugins, now):
            if len(self._standings) >= _MOST_KEPT:
                self._standings.clear()
            kept = self._standings[slot] = PodStanding.of(replicas, plugins, now)
        return kept


def _candidates(replicas: Sequence[RoutedPod], context: Context, plugins: Plugins) -> list[RoutedPod]:
    """The pods whose model list fits: where the filter is on, and, if there are any, for an adapter."""
    if not context.lora and "lora-affinity" not in plugins.filters:
        return list(replicas)
    having = [one for one in replicas if context.upstream_model in one.models]
    if not having and "lora-affinity" in plugins.filters:
        raise FilteredOut('pods have all been filtered out by "lora-affinity"')
    return having or list(replicas)


def rank(
    replicas: Sequence[RoutedPod],
    context: Context,
    plugins: Plugins,
    cache: PrefixCache,
    now: float,
    random: Random,
    most: int = MOST_RANKED,
    memo: Memo | None = None,
    slot: str = "",
) -> list[Attempt]:
    """The best pods, best first; equal ones in random order, unreachable ones last.

    ``memo`` makes it fast where it is the same from call to call; ``slot`` tells apart what one memo is used for.
    Raises ``FilteredOut``: a filter left none. No replicas: an empty list.
    """
    if not replicas:
        return []
    candidates = _candidates(replicas, context, plugins)
    adapter = context.upstream_model if len(candidates) < len(replicas) else ""
    standing = (memo or Memo()).standing((slot, adapter), candidates, plugins, now)
    kept = standing.kept
    if not kept:
        raise FilteredOut('pods have all been filtered out by "least-request"')
    points = {}
    total = standing.total
    for name, weight in plugins.scores:
        scores = standing.points.get(name)
        if scores is None:
            scores = _SCORERS[name](standing, context, plugins, cache, random)
            if weight != 1:
                scores = [weight * one for one in scores]
            total = list(map(add, total, scores))
        points[name] = scores
    best = _best(total, most, random)
    return [Attempt(kept[index], None, {name: scores[index] for name, scores in points.items()}) for index in best]


def _best(total: Sequence[float], most: int, random: Random) -> list[int]:
    """The places of the highest totals. Equal ones come in random order: else an idle pod would lose to the first."""
    best: Iterable[int] = range(len(total))
    if most < len(total):
        cut = nlargest(most, total)[-1]
        ahead = [index for index, one in enumerate(total) if one > cut]
        equal = [index for index, one in enumerate(total) if one == cut]
        best = ahead + random.sample(equal, most - len(ahead))
    return [index for *_, index in sorted([(total[one], random.random(), one) for one in best], reverse=True)]


def pair(
    decode: Sequence[RoutedPod],
    prefill: Sequence[RoutedPod],
    context: Context,
    plugins: Plugins,
    cache: PrefixCache,
    now: float,
    random: Random,
    memo: Memo | None = None,
) -> list[Attempt]:
    """The best decode pods, each with the best prefill pod of its group. Raises ``FilteredOut``: there is no pair."""
    groups: dict[str, list[RoutedPod]] = {}
    for one in prefill:
        groups.setdefault(one.group, []).append(one)
    paired = [one for one in decode if one.group in groups]
    found = []
    for picked in rank(paired, context, plugins, cache, now, random, memo=memo):
        try:
            group = picked.pod.group
            best = rank(groups[group], context, plugins, cache, now, random, 1, memo, f"prefill {group}")
        except FilteredOut:
            continue
        found += [Attempt(picked.pod, one.pod) for one in best]
    if not found:
        raise FilteredOut("no valid prefill-decode pod pairs found" if decode else "no decode pod found")
    return found


def _load(standing: PodStanding, *_: Any) -> list[float]:
    loads = []
    for one, running, waiting in zip(standing.kept, standing.running, standing.waiting, strict=True):
        sent = one.outstanding + one.elsewhere
        queued = sent - running
        loads.append(sent + 100 * (queued if queued > waiting else waiting))
    return least_request(loads)


def _prefix(standing: PodStanding, context: Context, plugins: Plugins, cache: PrefixCache, _: Random) -> list[float]:
    points = [0.0] * len(standing.kept)
    places = standing.places
    for pod, count in cache.matches(context.hashes, places.keys(), plugins.top_matches).items():
        points[places[pod]] = count / len(context.hashes) * 100 // 1
    return points


def _session(standing: PodStanding, context: Context, *_: Any) -> list[float]:
    points = [0.0] * len(standing.kept)
    if context.last_pod in standing.places:
        points[standing.places[context.last_pod]] = 100.0
    return points


_Scorer = Callable[[PodStanding, Context, Plugins, PrefixCache, Random], list[float]]
_SCORERS: Mapping[str, _Scorer] = {
    "least-request": _load,
    "prefix-cache": _prefix,
    "session-affinity": _session,
    "queued-tokens": lambda standing, *_: least_request([one.queued_tokens for one in standing.kept]),
    "random": lambda standing, *rest: [float(rest[-1].randint(0, 100)) for _ in standing.kept],
}
