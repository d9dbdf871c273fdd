"""What 10,000 routes, 1,000 servers and 10,000 pods cost a router: a lookup, a pick, a change, and memory.

    python benchmarks/routes.py [--routes 10000] [--servers 1000] [--pods 10000] [--namespaces 50 1]

Everything in one process, CPU time of one core. Beside each figure its ratio to the same with a hundredth of the
objects, measured in the same run; for the lookup also to looking through all routes one by one.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from random import Random
from typing import Any, NamedTuple

from modelyard.objects import Key, Pod
from modelyard.routing.fleet import RoutedFleet
from modelyard.routing.objects import Route, Server, route, server
from modelyard.routing.plugins import Plugins
from modelyard.routing.schedule import Context, EngineGauges, Memo, PrefixCache, RoutedPod, rank
from modelyard.routing.table import Asked, takes

ALL = Plugins(
    scores=(("least-request", 1.0), ("least-latency", 1.0), ("gpu-usage", 1.0), ("prefix-cache", 1.0),
            ("queued-tokens", 1.0), ("session-affinity", 1.0))
)  # fmt: skip


def metadata(name: str, namespace: str) -> dict[str, Any]:
    return {"name": name, "namespace": namespace, "uid": f"uid-{name}", "creationTimestamp": "2026-01-01T00:00:00Z"}


def a_route(index: int, servers: int, namespaces: int) -> Route:
    """Every third with a test of a header and of the path before the rule that takes all."""
    to = index % servers
    targets = [{"modelServerName": f"server-{to}", "weight": 90}, {"modelServerName": f"server-{to}", "weight": 10}]
    tests = {"headers": {"x-tier": {"regex": "^gold"}}, "uri": {"prefix": "/v1/chat"}}
    rules = [{"modelMatch": tests, "targetModels": targets}] if index % 3 == 0 else []
    spec = {"modelName": f"model-{index}", "rules": [*rules, {"targetModels": targets}]}
    return route({"metadata": metadata(f"route-{index}", f"ns-{to % namespaces}"), "spec": spec})


def a_server(index: int, namespaces: int) -> Server:
    spec = {"inferenceEngine": "vLLM", "workloadSelector": {"matchLabels": {"app": f"app-{index}"}}}
    return server({"metadata": metadata(f"server-{index}", f"ns-{index % namespaces}"), "spec": spec})


def a_pod(index: int, servers: int, namespaces: int) -> Pod:
    to = index % servers
    return Pod(
        Key(f"ns-{to % namespaces}", f"pod-{index}"), f"uid-{index}", None, 0.0, 1.0, "Running",
        labels={"app": f"app-{to}", "pod-template-hash": "5d8f7"},
        ip=f"10.{index >> 16}.{index >> 8 & 255}.{index & 255}", started="1",
    )  # fmt: skip


NONE: list[Pod] = []


class Cluster(NamedTuple):
    """What the mirror holds, by namespace."""

    routes: list[Route]
    servers: dict[str, list[Server]]
    pods: dict[str, list[Pod]]

    @classmethod
    def made(cls, routes: int, servers: int, pods: int, namespaces: int) -> Cluster:
        by: tuple[dict[str, list[Any]], dict[str, list[Any]]] = ({}, {})
        for index in range(servers):
            one = a_server(index, namespaces)
            by[0].setdefault(one.key.namespace, []).append(one)
        for index in range(pods):
            pod = a_pod(index, servers, namespaces)
            by[1].setdefault(pod.key.namespace, []).append(pod)
        return cls([a_route(index, servers, namespaces) for index in range(routes)], *by)

    def told(self, fleet: RoutedFleet, routes: list[Route] | None = None) -> None:
        fleet.update(
            self.routes if routes is None else routes,
            self.servers.__getitem__,
            lambda namespace: self.pods.get(namespace, NONE),
            list(self.servers),
        )


def cost(call: Callable[[], object], rounds: int) -> float:
    """CPU seconds of a call, of the fastest fifth of the rounds."""
    times = []
    for _ in range(rounds):
        began = time.process_time_ns()
        call()
        times.append(time.process_time_ns() - began)
    best = sorted(times)[: max(1, rounds // 5)]
    return sum(best) / len(best) / 1e9


def measure(routes: int, servers: int, pods: int, namespaces: int) -> dict[str, float]:
    """Seconds by what is done; ``memory`` in MiB of what the router holds beside the objects."""
    namespaces, random = min(namespaces, servers), Random(0)
    cluster = Cluster.made(routes, servers, pods, namespaces)
    gc.collect()
    tracemalloc.start()
    fleet = RoutedFleet()
    began = time.process_time()
    cluster.told(fleet)
    whole = time.process_time() - began
    found = {"memory": tracemalloc.get_traced_memory()[0] / 2**20}
    tracemalloc.stop()
    fresh = RoutedFleet()
    began = time.process_time()
    cluster.told(fresh)
    found["start"] = min(whole, time.process_time() - began)

    asked = [
        Asked(f"model-{random.randrange(routes)}", "/v1/chat/completions", {"x-tier": "silver"}) for _ in range(500)
    ]

    def lookups() -> None:
        for one in asked:
            fleet.table.find(one, fleet.has_pods, random)

    def looked_through() -> None:
        one = asked[0]
        next(r for r in cluster.routes if one.model in r.names and any(takes(rule, one) for rule in r.rules))

    found["lookup"] = cost(lookups, 20) / len(asked)
    found["lookup, one by one"] = cost(looked_through, 20)

    numbers = count()
    listed = list(cluster.routes)

    def route_changed() -> None:
        index = random.randrange(routes)
        listed[index] = replace(listed[index], created=float(next(numbers)))
        cluster.told(fleet, list(listed))

    def pod_changed() -> None:
        space = random.choice(spaces)
        there = cluster.pods[space] = list(cluster.pods[space])
        index = random.randrange(len(there))
        there[index] = replace(there[index], ready_since=None if there[index].ready else 1.0)
        cluster.told(fleet)

    found["route changed"] = cost(route_changed, 15)
    cluster.told(fleet)
    spaces = list(cluster.pods)
    found["pod changed"] = cost(pod_changed, 15)
    return found


def picks(pods: int) -> float:
    """Seconds of a pick among so many pods, each busy in its own way, with every scorer."""
    random = Random(0)
    routed = [
        RoutedPod(Key("ns", f"pod-{index}"), "", gauges=EngineGauges(0.0, random.randrange(3), random.randrange(40),
                  random.random(), random.random(), random.random() / 10), outstanding=random.randrange(40))
        for index in range(pods)
    ]  # fmt: skip
    cache, memo, hashes = PrefixCache(), Memo(), list(range(64))
    for one in routed[:7]:
        cache.learn(one.key, hashes[: random.randrange(1, 64)])
    context = Context(hashes=hashes, last_pod=routed[0].key)
    for one in routed:
        one.queued_tokens = random.randrange(10_000)

    def some() -> None:
        for _ in range(100):
            rank(routed, context, ALL, cache, 0.0, random, memo=memo)

    return cost(some, 20) / 100


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--routes", type=int, default=10_000)
    parser.add_argument("--servers", type=int, default=1_000)
    parser.add_argument("--pods", type=int, default=10_000)
    parser.add_argument("--namespaces", type=int, nargs="+", default=[50, 1])
    options = parser.parse_args(arguments)
    for spaces in options.namespaces:
        large = measure(options.routes, options.servers, options.pods, spaces)
        small = measure(*(max(2, number // 100) for number in (options.routes, options.servers, options.pods)), spaces)
        print(f"\n{options.routes} routes, {options.servers} servers, {options.pods} pods in {spaces} namespaces")
        print("| | | × a hundredth |\n| --- | --: | --: |")
        for name, unit, factor in (
            ("lookup", "µs", 1e6),
            ("lookup, one by one", "µs", 1e6),
            ("route changed", "ms", 1e3),
            ("pod changed", "ms", 1e3),
            ("start", "ms", 1e3),
            ("memory", "MiB", 1.0),
        ):
            print(f"| {name} | {large[name] * factor:.2f} {unit} | {large[name] / small[name]:.1f} |")
    print("\n| pods | a pick |\n| --: | --: |")
    for pods in (10, 100, 1000):
        print(f"| {pods} | {picks(pods) * 1e6:.0f} µs |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
