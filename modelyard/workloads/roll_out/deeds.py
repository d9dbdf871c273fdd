"""What is written and taken away for a service now, of what differs: what has to wait waits. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from modelyard.workloads.rendering import Refused, StoredChild
from modelyard.workloads.roll_out.changes import identity, marked
from modelyard.workloads.roll_out.rollout_state import Standing
from modelyard.workloads.roll_out.standing import in_turn, is_workload


@dataclass(frozen=True, slots=True)
class Deeds:
    """What is to be written and taken away now, and in words; ``waits``: what has to go before the rest is written."""

    apply: tuple[Mapping[str, Any], ...] = ()
    delete: tuple[StoredChild, ...] = ()
    waits: tuple[str, ...] = ()

    @property
    def words(self) -> list[str]:
        made = [f"{one['kind']} {one['metadata']['name']}" for one in self.apply]
        return made + [f"{one.kind.kind} {one.key.name} (goes)" for one in self.delete]

    @classmethod
    def of(cls, here: Standing, owned: list[StoredChild]) -> Deeds:
        """What is due of what differs; ``owned`` is all that belongs to the service."""
        result, diff = here.result, here.changes
        if isinstance(result, Refused) or diff.conflicts:
            return cls()
        done = {kind for kind, one in here.states.items() if one.rolled_out}
        ready = {kind for kind, one in here.states.items() if one.ready}
        due = (one for one in in_turn(diff.apply, here.there.values()) if ready.issuperset(one.after))
        apply = tuple(marked(one.body if identity(one.body) in here.there else one.seeded, one.body) for one in due)
        kept = {
            (one.kind, one.name) for one in result.retired if not done.issuperset(set(one.after) & here.states.keys())
        }
        mine = {identity(one.body): one for one in owned}
        delete = []
        for one in filter(None, (mine.get(identity(body)) for body in diff.delete)):
            # What serves goes when what takes its place does.
            replaced = is_workload(one) and one.component in here.states and one.component not in done
            if not replaced and (one.kind.kind, one.key.name) not in kept:
                delete.append(one)
        return cls(apply, tuple(delete), tuple(f"{one} to be gone" for one in diff.leaving))
