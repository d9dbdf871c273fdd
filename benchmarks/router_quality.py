"""What the choice of the pod is worth: a production trace with its shared prompts, in virtual time.

    python benchmarks/router_quality.py [--pods 8] [--load 0.5 0.8 0.95] [--requests 12031] [--seeds 1]

Replays ``data/mooncake-conversation.jsonl.gz`` on simulated engines (an 8B model on one card each, with a prefix cache
in their KV blocks), each request to the pod that ``modelyard.routing`` ranks first, and prints percentiles of TTFT and
ITL and the share of prompt tokens found in prefix caches. The load is a share of the rate at which round robin, given
everything at once, is done; arrivals keep the trace's course. Gauges are read once a second, as by a real router.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np

from modelyard.engine.config import PROFILES
from modelyard.engine.core import EngineCore
from modelyard.engine.request import EventKind
from modelyard.objects import Key
from modelyard.routing.plugins import Plugins
from modelyard.routing.schedule import Context, EngineGauges, Memo, PrefixCache, RoutedPod, average, rank

TRACE = Path(__file__).parent / "data" / "mooncake-conversation.jsonl.gz"
BLOCK = 512
SCRAPE = 1.0
TARGET = 0.20
ENGINE = replace(PROFILES["h100"], max_model_len=None, prefix_segment=BLOCK)


class Asked(NamedTuple):
    at: float
    prompt: int
    output: int
    blocks: tuple[int, ...]


def plugins(*scores: tuple[str, float], filters: tuple[str, ...] = ("least-request",)) -> Plugins:
    # What a block of 512 tokens is in bytes does not matter here: the trace's numbers stand for the hashes.
    return Plugins(filters, scores, max_blocks=256, max_hashes=ENGINE.kv_cache_tokens // BLOCK)


SETS = {
    "random": plugins(("random", 1.0), filters=()),
    "round robin": None,
    "least request": plugins(("least-request", 1.0)),
    "prefix-aware": plugins(("least-request", 1.0), ("prefix-cache", 1.0)),
    "default": replace(Plugins(), max_blocks=256, max_hashes=ENGINE.kv_cache_tokens // BLOCK),
    "full": plugins(
        ("least-request", 1.0),
        ("queued-tokens", 1.0),
        ("gpu-usage", 1.0),
        ("least-latency", 1.0),
        ("prefix-cache", 2.0),
    ),
}


def read(count: int, seed: int) -> list[Asked]:
    """The trace; the requests of a step of three seconds are spread over it."""
    random = Random(seed)
    with gzip.open(TRACE, "rt") as lines:
        told = [json.loads(line) for _, line in zip(range(count), lines, strict=False)]
    return sorted(
        Asked(one["timestamp"] / 1000 + 3 * random.random(), one["input_length"], one["output_length"],
              tuple(one["hash_ids"][: one["input_length"] // BLOCK]))
        for one in told
    )  # fmt: skip


class Pod:
    """An engine, and what a router knows of it."""

    def __init__(self, number: int) -> None:
        self.core = EngineCore(ENGINE, seed=number)
        self.routed = RoutedPod(Key("bench", f"pod-{number}"), "")
        self._before: tuple[tuple[float, float], tuple[float, float]] | None = None

    def advance(self, to: float) -> None:
        for event in self.core.advance(to):
            if event.kind is EventKind.FIRST_TOKEN:
                self.routed.queued_tokens -= event.request.prompt_tokens
            elif event.kind is EventKind.FINISHED:
                self.routed.outstanding -= 1

    def scrape(self, now: float) -> None:
        stats, last = self.core.stats, self.routed.gauges
        read = (stats.ttft.total, stats.ttft.count), (stats.itl.total, stats.itl.count)
        ttft, tpot = (
            average(self._before and self._before[index], read[index], last[4 + index] if last else 0.0)
            for index in (0, 1)
        )
        self._before = read
        self.routed.gauges = EngineGauges(
            now, self.core.num_waiting, self.core.num_running, self.core.kv_usage, ttft, tpot
        )


class Outcome(NamedTuple):
    ttft: np.ndarray
    itl: np.ndarray
    hits: float
    seconds: float
    picks: float


def play(asked: Sequence[Asked], pods: int, chosen: Plugins | None, seed: int) -> Outcome:
    fleet = [Pod(number) for number in range(pods)]
    routed, by_key = [one.routed for one in fleet], {one.routed.key: one for one in fleet}
    random, cache, memo = Random(seed), PrefixCache(chosen.max_hashes if chosen else 1), Memo()
    scrape, picking, requests = 0.0, 0.0, []
    for number, one in enumerate(asked):
        while scrape <= one.at:
            for pod in fleet:
                pod.advance(scrape)
                pod.scrape(scrape)
            scrape += SCRAPE
        for pod in fleet:
            pod.advance(one.at)
        if chosen is None:
            pod = fleet[number % pods]
        else:
            began = time.process_time()
            context = Context(hashes=one.blocks[: chosen.max_blocks])
            best = rank(routed, context, chosen, cache, one.at, random, memo=memo)[0].pod
            picking += time.process_time() - began
            cache.learn(best.key, context.hashes)
            pod = by_key[best.key]
        pod.routed.outstanding += 1
        pod.routed.queued_tokens += one.prompt
        requests.append(pod.core.submit(one.prompt, one.output, prefix=one.blocks))
    for pod in fleet:
        while (at := pod.core.next_event_time()) < math.inf:
            pod.advance(at + 60)
    ttft = np.array([one.first_token_at - one.arrived_at for one in requests])
    itl = np.array([
        (one.finished_at - one.first_token_at) / (one.output_tokens - 1) for one in requests if one.output_tokens > 1
    ])  # fmt: skip
    stats = [pod.core.stats for pod in fleet]
    hits = sum(one.prefix_hits_total for one in stats) / sum(one.prefix_queries_total for one in stats)
    return Outcome(ttft, itl, hits, max(one.finished_at for one in requests), picking / len(asked))


def measured(asked: Sequence[Asked], pods: int, load: float, seeds: int) -> dict[str, list[Outcome]]:
    """Every set at a share of what round robin can do."""
    burst = play([one._replace(at=0.0) for one in asked], pods, None, 0)
    stretch = burst.seconds / load / asked[-1].at
    paced = [one._replace(at=one.at * stretch) for one in asked]
    rate = len(asked) / paced[-1].at
    print(
        f"\nload {load:.0%} of round robin's {len(asked) / burst.seconds:.2f} requests/s on {pods} pods: {rate:.2f}/s"
    )
    print("| set | TTFT p50 | p90 | p95 | p99 | mean | ITL p50 | p95 | prefix hits | µs a pick |")
    print("| --- | --: | --: | --: | --: | --: | --: | --: | --: | --: |")
    found = {}
    for name, chosen in SETS.items():
        found[name] = [play(paced, pods, chosen, seed) for seed in range(seeds)]
        ttft, itl = (np.concatenate([getattr(one, part) for one in found[name]]) for part in ("ttft", "itl"))
        points = [f"{np.percentile(ttft, part):.2f} s" for part in (50, 90, 95, 99)] + [f"{ttft.mean():.2f} s"]
        gaps = [f"{np.percentile(itl, part) * 1000:.1f} ms" for part in (50, 95)]
        hits, picks = (float(np.mean([getattr(one, part) for one in found[name]])) for part in ("hits", "picks"))
        cells = [name, *points, *gaps, f"{hits:.1%}", f"{picks * 1e6:.0f}" if picks else "–"]
        print("|", " | ".join(cells), "|", flush=True)
    return found


def p95(outcomes: Sequence[Outcome]) -> float:
    return float(np.percentile(np.concatenate([one.ttft for one in outcomes]), 95))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, default=8)
    parser.add_argument("--load", type=float, nargs="+", default=[0.5, 0.8, 0.95])
    parser.add_argument("--requests", type=int, default=12_031)
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args(arguments)
    asked = read(options.requests, 0)
    met = True
    for load in options.load:
        found = measured(asked, options.pods, load, options.seeds)
        full, least, robin = (p95(found[name]) for name in ("full", "least request", "round robin"))
        print(
            f"full: TTFT p95 {1 - full / robin:.0%} better than round robin, {1 - full / least:.0%} than least request"
        )
        met = met and full <= least and (load != 0.8 or full <= (1 - TARGET) * robin)
    print("targets met" if met else "targets missed")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
