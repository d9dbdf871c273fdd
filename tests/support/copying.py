"""A lifecycle that acts: a ConfigMap labelled ``copies=parent`` says in the annotation ``copies`` how many it wants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from modelyard.objects import Key
from modelyard.objects.kinds import CONFIG_MAPS
from modelyard.reconcile.plans.plan import Child, Plan, Subject, Want, World
from modelyard.reconcile.plans.write_rules import WriteRules

DONE = "copied"


class Map(NamedTuple):
    """A parent, or a copy of one."""

    subject: Subject
    wanted: int
    done: str
    owner: str
    trouble: str

    @property
    def key(self) -> Key:
        return self.subject.key


def parse(obj: Mapping[str, Any]) -> Map:
    metadata = obj["metadata"]
    annotations = metadata.get("annotations") or {}
    owners = metadata.get("ownerReferences") or [{"uid": ""}]
    return Map(
        Subject.of(CONFIG_MAPS, obj),
        int(annotations.get("copies", -1)),
        annotations.get(DONE, ""),
        owners[0]["uid"],
        annotations.get("trouble", ""),
    )


class Copies:
    """As many children as the parent asks for; it says so when they are there."""

    name = "copies"
    about = CONFIG_MAPS
    wants = (
        Want(
            CONFIG_MAPS,
            parse,
            label_selector="copies",
            indexes={"owner": lambda one: (one.owner,) if one.owner else ()},
        ),
    )

    def plan(self, key: Key, world: World, now: float) -> Plan | None:
        parent: Map | None = world[CONFIG_MAPS].get(key)
        if parent is None or parent.wanted < 0 or parent.subject.deleting:
            return None
        there: dict[str, Map] = {one.key.name: one for one in world[CONFIG_MAPS].by("owner", parent.subject.uid)}
        names = [f"{key.name}-{number}" for number in range(parent.wanted)]
        missing = [self.child(key.namespace, name) for name in names if name not in there]
        surplus = [one for name, one in there.items() if name not in names]
        done = "" if missing or surplus else str(parent.wanted)
        return Plan(
            parent.subject,
            annotations={} if parent.done == done else {DONE: done or None},
            apply=tuple(missing),
            delete=tuple(Child(CONFIG_MAPS, one.key, one.subject.uid) for one in surplus),
            rules=WriteRules.of((CONFIG_MAPS,)),
        )

    @staticmethod
    def child(namespace: str, name: str) -> dict[str, Any]:
        metadata = {"name": name, "namespace": namespace, "labels": {"copies": "child"}}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"copy": name}}
