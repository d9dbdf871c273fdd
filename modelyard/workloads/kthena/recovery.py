"""Which pods to replace together: the pods of a group serve together, and one that comes anew finds no others. Pure.

For groups that plain objects keep; a LeaderWorkerSet does the same itself. What is decided from is in the pods alone,
so that whoever decides next decides the same.

Source: Kthena Model controller reference, "Failure and recovery".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

GRACE: Final = 60.0
"""Seconds in which a pod that failed may become ready again."""


@dataclass(frozen=True, slots=True)
class GroupPod:
    """A pod of a group. ``since`` is when it became ready, or ceased to be (epoch seconds); ``restarts`` counts those
    of all its containers, init containers among them."""

    name: str
    uid: str
    group: str
    created: float
    since: float
    phase: str = "Running"
    ready: bool = True
    restarts: int = 0
    entry: bool = False
    deleting: bool = False


class Replacement(NamedTuple):
    """Pods of one group to be deleted together, and why."""

    group: str
    pods: tuple[GroupPod, ...]
    reason: str


class Recovery(NamedTuple):
    """What is due now, and when (epoch seconds) to look again; ``None``: only when a pod changes."""

    replace: tuple[Replacement, ...]
    due: float | None


def recover(pods: Iterable[GroupPod], now: float, grace: float = GRACE) -> Recovery:
    """The groups to be replaced. A pod alone in its group is not: its kubelet restarts it."""
    groups: defaultdict[str, list[GroupPod]] = defaultdict(list)
    for pod in pods:
        groups[pod.group].append(pod)
    replace, due = [], []
    for group, members in sorted(groups.items()):
        left = [one for one in members if not one.deleting]
        failed = [one for one in left if _failed(one)]
        reason = ""
        if len(members) < 2:
            continue
        if over := [one for one in failed if now >= one.since + grace]:
            reason = f"pod {over[0].name} has failed and was not ready again within {grace:g} s"
        elif left and (going := [one for one in members if one.deleting]):
            reason = f"pod {going[0].name} goes"
        elif late := _late(left):
            reason = f"pod {late.name} came after the group had started"
        if reason and left:
            replace.append(Replacement(group, tuple(sorted(left, key=lambda one: one.name)), reason))
        else:
            due += [one.since + grace for one in failed]
    return Recovery(tuple(replace), min(due, default=None))


def _failed(pod: GroupPod) -> bool:
    well = pod.phase == "Running" and pod.ready
    return not well and (pod.phase == "Failed" or pod.restarts > 0)


def _late(pods: list[GroupPod]) -> GroupPod | None:
    """A pod that joined when the entry pod was ready: it stands in for one that the others still know.

    Pods made together never look like this, for the entry pod is ready only when all others have joined.
    """
    entry = next((one for one in pods if one.entry and one.ready), None)
    return next((one for one in pods if entry is not None and one.created > entry.since), None)
