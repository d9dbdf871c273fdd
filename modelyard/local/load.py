"""Traffic for the engines of a local cluster: their pods, kept current by a watch, and requests at a steady rate."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from modelyard.cluster import Cluster
from modelyard.objects import PODS, parse
from modelyard.traffic import Endpoint
from modelyard.traffic.clients import Replay, ReplaySettings, columns
from modelyard.traffic.traces import SLO, Latency, Trace


@dataclass
class ReadyPods:
    """The ready engine pods of one namespace, kept current by a watch; the replayer asks for them."""

    namespace: str
    port: int = 8000
    ready: dict[str, Endpoint] = field(default_factory=dict)

    async def current(self) -> list[Endpoint]:
        return sorted(self.ready.values())

    async def follow(self, cluster: Cluster) -> None:
        async for event in cluster.watch(PODS, self.namespace):
            if event.kind == "SYNC":
                continue
            pod = parse.pod(event.object)
            address = (event.object.get("status") or {}).get("podIP")
            if event.kind != "DELETED" and pod.ready and address:
                url = f"http://{address}:{self.port}"
                self.ready[pod.key.name] = Endpoint(pod.key.name, url, pod.labels.get("app", ""))
            else:
                self.ready.pop(pod.key.name, None)


async def serve(cluster: Cluster, pods: ReadyPods, model: str, trace: Trace, tell: Callable[[str], None]) -> Latency:
    """Send a trace, as it was recorded, to whatever is ready; a line every ten seconds. What the clients saw."""
    replay = Replay(trace, pods.current, ReplaySettings(model))

    async def progress() -> None:
        while True:
            await asyncio.sleep(10)
            seen = Latency.of(columns(replay.results), SLO())
            tell(
                f"{replay.virtual_time:.0f} s: {len(pods.ready)} ready, {replay.sent} sent, {seen.answered} answered, "
                f"{seen.requests - seen.answered} failed, TTFT p95 {seen.ttft.p95:.2f} s"
            )

    beside = [asyncio.create_task(work) for work in (pods.follow(cluster), progress())]
    try:
        return Latency.of(columns(await replay.run()), SLO())
    finally:
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
