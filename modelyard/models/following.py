"""A delivery from outside: the request for one, the progress that transfers report, and how it ended."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from modelyard.cluster import Cluster, Invalid, NotFound
from modelyard.models import names
from modelyard.models.legs import Leg, NodeStage
from modelyard.models.story import RESOLVED
from modelyard.models.world import NUDGE, VERIFY, TransferProgress
from modelyard.objects import Key, ResourceType
from modelyard.objects.documents import cut
from modelyard.reconcile.following import take
from modelyard.reconcile.status import timestamp

_MOST_LINES = 5
_MOST_WORDS = 300


@dataclass(frozen=True, slots=True)
class NodeOutcome:
    """What became of one node: bytes fetched over the network and whether the rest was in its store already."""

    model: str
    node: str
    bytes: int
    seconds: float
    from_store: bool

    @property
    def row(self) -> dict[str, Any]:
        """Of the table."""
        speed = round(self.bytes / self.seconds / 1e6, 1) if self.seconds else None
        return {
            "model": self.model,
            "node": self.node,
            "bytes": self.bytes,
            "seconds": round(self.seconds, 1),
            "MB/s": None if self.from_store else speed,
            "from": "store" if self.from_store else "source",
        }


class NoSuchModel(ValueError):
    """There is no model of this name; the message says where it was looked for, and what to do."""

    @classmethod
    def at(cls, kind: str, key: Key, remedy: str) -> NoSuchModel:
        """The error for a name."""
        where = f"in namespace {key.namespace}" if key.namespace else "at cluster scope"
        return cls(f"there is no {kind} {key.name} {where}: `modelyard models` lists those that there are; {remedy}")


@dataclass(frozen=True, slots=True)
class Ended:
    """How a model stands: its published state, reason and message; ``Gone`` when there is no such object."""

    state: str
    reason: str = ""
    message: str = ""


def read_ended(obj: Mapping[str, Any]) -> Ended:
    """Return how a model stands by its status."""
    status = obj.get("status") or {}
    ready = _condition(status, "Ready")
    return Ended(status.get("state", "Creating"), ready.get("reason", ""), ready.get("message", ""))


def _condition(status: Mapping[str, Any], type: str) -> Mapping[str, Any]:
    return next((item for item in status.get("conditions") or () if item.get("type") == type), {})


class Order:
    """A request to deliver a model that may have been requested before.

    ``obj`` is the model right after the request. Its status still tells of the request before; ``outcome`` does not.
    """

    def __init__(self, obj: Mapping[str, Any]) -> None:
        self._generation = int(obj["metadata"].get("generation") or 0)
        status = obj.get("status") or {}
        self.failed_before = status.get("state") == "Failed" or bool(status.get("nodesFailed"))
        """True when the previous request failed."""
        seen = int(status.get("observedGeneration") or 0) >= self._generation
        self._before = read_ended(obj) if seen and status.get("state") == "Failed" else None

    def outcome(self, obj: Mapping[str, Any]) -> Ended:
        """Return how the model stands now, ``Creating`` while its status is that of the request before."""
        status, current = obj.get("status") or {}, read_ended(obj)
        if status and int(status.get("observedGeneration") or 0) < self._generation:
            return Ended("Creating", "Requested", "the flow reconcile has not seen the request yet")
        # A refusal is of the spec as it is, and no attempt follows.
        if current == self._before and _condition(status, RESOLVED).get("status") != "False":
            return Ended("Creating", "Requested", "the next attempt has not begun yet")
        self._before = None
        return current


class Following:
    """Deliveries of one kind of model, over one connection."""

    def __init__(self, cluster: Cluster, kind: ResourceType) -> None:
        self.cluster = cluster
        self.kind = kind

    async def order(
        self,
        key: Key,
        uri: str,
        node_selector: Mapping[str, str],
        parameters: Mapping[str, str] | None = None,
        secret: str = "",
    ) -> Order:
        """Make a model of this name and URI, or give the one there is this URI. ``secret``: name of its credentials."""
        given = {"nodeSelector": dict(node_selector), "parameters": dict(parameters or {}), "key": secret}
        storage = {"storageUri": uri, **{name: values for name, values in given.items() if values}}
        body = {
            "apiVersion": self.kind.api_version,
            "kind": self.kind.kind,
            "metadata": {"name": key.name, **({"namespace": key.namespace} if key.namespace else {})},
            "spec": {"storage": storage},
        }
        return Order(await self.cluster.apply(body))

    async def retry(self, key: Key) -> None:
        """Have what failed tried again at once."""
        body = {"metadata": {"annotations": {NUDGE: f"{self.cluster.now():.3f}"}}}
        await self.cluster.merge_patch(self.kind, key.name, body, key.namespace or None)

    async def take(self, key: Key, run: str, attempt: int = 1) -> None:
        """Let a run of this name work on a model from now on, and try at once what waits to be tried again.

        ``attempt`` counts the times that the run has begun.
        """
        try:
            current = await self.cluster.get(self.kind, key.name, key.namespace or None)
        except NotFound:
            raise NoSuchModel.at(self.kind.kind, key, "a uri beside the name makes it") from None
        status = current.get("status") or {}
        failed = status.get("state") == "Failed" or status.get("nodesFailed")
        await take(
            self.cluster, current, self.kind, run, {NUDGE: f"{run.rpartition('/')[2]}-{attempt}"} if failed else {}
        )

    async def verify(self, namespaces: Iterable[str] = (), chosen: Iterable[str] = ()) -> list[Key]:
        """Have the files of all models (of these namespaces, of these names) checked; whose."""
        spaces, wanted = set(namespaces), set(chosen)
        asked = []
        for obj in await self.cluster.list(self.kind):
            metadata = obj["metadata"]
            key = Key(metadata.get("namespace", ""), metadata["name"])
            if (spaces and key.namespace not in spaces) or (wanted and key.name not in wanted):
                continue
            body = {"metadata": {"uid": metadata["uid"], "annotations": {VERIFY: timestamp(self.cluster.now())}}}
            try:
                await self.cluster.merge_patch(self.kind, key.name, body, key.namespace or None)
            except NotFound:
                continue
            asked.append(key)
        return asked

    async def ended(self, key: Key, order: Order | None = None) -> Ended:
        """Return how the model stands now; with ``order``, how that request does."""
        try:
            obj = await self.cluster.get(self.kind, key.name, key.namespace or None)
        except NotFound:
            return Ended("Gone")
        return read_ended(obj) if order is None else order.outcome(obj)


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
    """The last line of a fetching process's output that says how far it is."""
    for line in reversed(text.splitlines()):
        try:
            said = json.loads(line)
            if not isinstance(said, dict) or "phase" not in said:
                continue
            return TransferProgress(
                phase=said["phase"],
                total_bytes=said.get("bytesTotal") or 0,
                completed_bytes=said.get("bytes") or 0,
                total_files=said.get("filesTotal") or 0,
                completed_files=said.get("files") or 0,
                speed_bytes_per_sec=said.get("bytesPerSecond") or 0.0,
                last_updated=timestamp(now),
                trouble=cut(said.get("trouble") or "", _MOST_WORDS),
            )
        except ValueError:  # not a line of ours
            continue
    return None


def node_outcome(key: Key, leg: Leg) -> NodeOutcome | None:
    """Return what became of a node; ``None`` where the files have not arrived."""
    if leg.stage is not NodeStage.READY or leg.entry is None:
        return None
    done = leg.entry.delivered
    fetched = done.fetched_bytes if done.fetched_bytes is not None else done.bytes
    return NodeOutcome(
        str(key) if key.namespace else key.name,
        leg.node,
        (done.bytes if done.from_store else fetched) or 0,
        done.seconds or 0.0,
        bool(done.from_store),
    )


def kind_named(name: str) -> ResourceType:
    """The kind of this name."""
    return next(kind for kind in names.KINDS if kind.kind == name)
