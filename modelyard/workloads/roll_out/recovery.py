"""Which pods to replace together: the pods of a group serve together, and one that comes anew finds no others. Pure.

For groups that StatefulSets keep; a LeaderWorkerSet does the same itself. What is decided from is in the pods alone, so
that whoever decides next decides the same.

Source: Kthena Model controller reference, "Failure and recovery".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from modelyard.objects import PODS, STATEFUL_SETS, Notice
from modelyard.reconcile.plans import Child
from modelyard.workloads.rendering import StoredChild
from modelyard.workloads.roll_out.world import ServicePod

GRACE: Final = 60.0
"""Seconds in which a pod that failed may become ready again."""


class Replacement(NamedTuple):
    """Pods of one group to be deleted together, and why."""

    group: str
    pods: tuple[ServicePod, ...]
    reason: str


class Recovery(NamedTuple):
    """What is due now, and when (epoch seconds) to look again; ``None``: only when a pod changes."""

    replace: tuple[Replacement, ...] = ()
    due: float | None = None

    @property
    def words(self) -> list[str]:
        return [f"Pod {pod.key.name} (goes)" for one in self.replace for pod in one.pods]

    @property
    def notices(self) -> tuple[Notice, ...]:
        return tuple(Notice("GroupRestarted", f"group {one.group}: {one.reason}", "Warning") for one in self.replace)

    def children(self, owned: Iterable[StoredChild]) -> tuple[Child, ...]:
        """The pods to delete, each with what is between it and the service."""
        sets = {one.body["metadata"]["uid"]: (one.kind, one.key) for one in owned}
        return tuple(Child(PODS, pod.key, pod.uid, sets[pod.owner]) for one in self.replace for pod in one.pods)


def groups(owned: Iterable[StoredChild], pods: Iterable[ServicePod]) -> dict[str, list[ServicePod]]:
    """The pods of a service by group: those of StatefulSets that share a headless Service."""
    sets = (one.body for one in owned if one.kind == STATEFUL_SETS and "serviceName" in one.body["spec"])
    homes = {body["metadata"]["uid"]: body["spec"]["serviceName"] for body in sets}
    found: dict[str, list[ServicePod]] = {}
    for pod in pods:
        if pod.owner in homes:
            found.setdefault(homes[pod.owner], []).append(pod)
    return found


def recover(groups: Mapping[str, Sequence[ServicePod]], now: float) -> Recovery:
    """The groups to be replaced. A pod alone in its group is not: its kubelet restarts it."""
    replace, due = [], []
    for group, members in sorted(groups.items()):
        left = [one for one in members if one.deleting is None]
        failed = [one for one in left if one.failed]
        if len(members) < 2 or not left:
            continue
        if over := [one for one in failed if now >= one.since + GRACE]:
            why = f"pod {over[0].key.name} has failed and was not ready again within {GRACE:g} s"
        elif late := _late(left):
            why = f"pod {late.key.name} came after the group had started"
        else:
            why, left = _left_behind(members)
        if left:
            replace.append(Replacement(group, tuple(sorted(left, key=lambda one: one.key)), why))
        else:
            due += [one.since + GRACE for one in failed]
    return Recovery(tuple(replace), min(due, default=None))


def _late(pods: Sequence[ServicePod]) -> ServicePod | None:
    """A pod that joined when the entry pod was ready: it stands in for one that the others still know.

    Pods made together never look like this, for the entry pod is ready only when all others have joined.
    """
    entry = next((one for one in pods if one.entry and one.ready), None)
    return next((one for one in pods if entry is not None and one.created > entry.since), None)


def _left_behind(pods: Sequence[ServicePod]) -> tuple[str, list[ServicePod]]:
    """The pods that have served with an entry pod that goes; those that came since will serve with the next one.

    Where another pod goes, the one in its place comes too late. Were that looked for here as well, pods of one group
    that go one after the other would take each other along for ever.
    """
    entry = next((one for one in pods if one.entry and one.deleting is not None), None)
    if entry is None or entry.deleting is None:
        return "", []
    behind = [one for one in pods if one.deleting is None and one.created < entry.deleting]
    return f"pod {entry.key.name} goes", behind
