"""Transfers of a model to nodes: the progress that a running one reports, and the outcome of one that has ended."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from modelyard.cluster import Cluster, Invalid, NotFound
from modelyard.models.delivery import MOST_WORDS, Leg, NodeStage, TransferProgress
from modelyard.objects import Key, amount, counted, cut, timestamp
from modelyard.reconcile.plans import ObjectResult, ResultState

_MOST_LINES = 5


@dataclass(frozen=True, slots=True)
class NodeOutcome:
    """A node that has received a model: bytes fetched over the network, and whether its store had the files already."""

    model: str
    node: str
    bytes: int
    seconds: float
    from_store: bool

    @property
    def row(self) -> dict[str, Any]:
        speed = round(self.bytes / self.seconds / 1e6, 1) if self.seconds else None
        return {
            "model": self.model,
            "node": self.node,
            "bytes": self.bytes,
            "seconds": round(self.seconds, 1),
            "MB/s": None if self.from_store else speed,
            "from": "store" if self.from_store else "source",
        }


def received(outcomes: Collection[NodeOutcome]) -> ObjectResult:
    """Return how much the nodes of a run received."""
    size, nodes = sum(outcome.bytes for outcome in outcomes), {outcome.node for outcome in outcomes}
    return ObjectResult(ResultState.DONE, f"{amount(size)} onto {counted(len(nodes), 'node')}")


def node_outcome(key: Key, leg: Leg) -> NodeOutcome | None:
    """Return what became of a node; ``None`` where the files have not arrived."""
    if leg.stage is not NodeStage.READY or leg.entry is None:
        return None
    done = leg.entry.delivered
    fetched = done.fetched_bytes if done.fetched_bytes is not None else done.bytes
    return NodeOutcome(
        key.label,
        leg.node,
        (done.bytes if done.from_store else fetched) or 0,
        done.seconds or 0.0,
        bool(done.from_store),
    )


async def read_progress(cluster: Cluster, leg: Leg) -> TransferProgress | None:
    """Return the progress that a node's transfer reports; ``None`` where none is running or reports any."""
    if leg.pod is None or leg.pod.phase != "Running":
        return None
    try:
        text = await cluster.log(leg.pod.key.name, leg.pod.key.namespace, _MOST_LINES)
    except (NotFound, Invalid):
        return None
    return progress_of(text, cluster.now())


def progress_of(text: str, now: float) -> TransferProgress | None:
    """Return the progress in the last line of a transfer's output that reports it."""
    for line in reversed(text.splitlines()):
        try:
            report = json.loads(line)
            if not isinstance(report, dict) or "phase" not in report:
                continue
            return TransferProgress(
                phase=report["phase"],
                total_bytes=report.get("bytesTotal") or 0,
                completed_bytes=report.get("bytes") or 0,
                total_files=report.get("filesTotal") or 0,
                completed_files=report.get("files") or 0,
                speed_bytes_per_sec=report.get("bytesPerSecond") or 0.0,
                last_updated=timestamp(now),
                trouble=cut(report.get("trouble") or "", MOST_WORDS),
            )
        except ValueError:  # not a line of ours
            continue
    return None
