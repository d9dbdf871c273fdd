"""State of a roll-out, from which a plan is made: what a service names, its children and its components. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from modelyard.objects import CONTROLLER_REVISIONS
from modelyard.reconcile.plans import Plan
from modelyard.workloads.rendering import Refused, Rendered, StoredChild
from modelyard.workloads.roll_out.changes import Changes, Identity, differences, identity
from modelyard.workloads.roll_out.gates import GateWatch
from modelyard.workloads.roll_out.resolution import Resolved
from modelyard.workloads.roll_out.returning import Aim
from modelyard.workloads.roll_out.standing import ComponentStanding
from modelyard.workloads.roll_out.world import StoredService

PENDING = "MetadataPending"
"""Reason of a service whose model's files have not been read yet."""


@dataclass(frozen=True, slots=True)
class Standing:
    """State of a service that its plan is made from: resolved references, rendered objects, changes and components."""

    service: StoredService
    resolved: Resolved
    result: Rendered | Refused
    changes: Changes = field(default_factory=Changes)
    states: Mapping[str, ComponentStanding] = field(default_factory=dict)
    routed: bool = False
    there: Mapping[Identity, StoredChild] = field(default_factory=dict)
    """Existing objects: those with the names of its children, and all that it owns."""
    held: Sequence[str] = ()
    """Changes of its runtime, model or weights that wait for approval."""
    aim: Aim | None = None
    """The update to roll out; ``None``: nothing new."""
    begun: bool = False
    """True when all pods that may be requested by now are requested."""
    good: str = ""
    """The revision that served last."""
    done: bool = False
    """True when the roll-out is complete and no earlier object is kept."""
    canary: str = ""
    """The part of the update that serves next to the previous revision, in words."""
    watch: GateWatch | None = None
    compared: str = ""
    """The result of the comparison with the previous revision, in words."""
    returned: str = ""
    """The reason for which the update was abandoned."""
    unreturnable: str = ""
    """The reason for which the update could not be rolled back."""
    failed: ComponentStanding | None = None
    """The component because of which this plan abandons the update."""

    @property
    def problem(self) -> Refused | None:
        return self.result if isinstance(self.result, Refused) else None

    @property
    def answers(self) -> bool:
        return bool(self.states) and all(component.ready for component in self.states.values())

    @property
    def stuck(self) -> bool:
        """Return whether waiting will not mend it."""
        if self.problem is not None:
            return self.problem.reason != PENDING
        troubles = [component.trouble for component in self.states.values() if not component.rolled_out]
        is_final = any(trouble is not None and trouble.final for trouble in troubles)
        return bool(self.changes.conflicts or self.returned) or is_final

    def differences(self, plan: Plan) -> list[str]:
        """Return a line for each change of the plan; nothing of what is kept of the revision that serves."""
        changes = []
        for body in plan.apply:
            if body["kind"] == CONTROLLER_REVISIONS.kind:
                continue
            stored = self.there.get(identity(body))
            called = f"{body['kind']} {body['metadata']['name']}"
            lines = differences(stored.body, body) if stored is not None else []
            changes += [f"{called}: new"] if stored is None else [f"{called}: {line}" for line in lines]
        deleted = [child for child in plan.delete if child.kind != CONTROLLER_REVISIONS]
        return changes + [f"{child.kind.kind} {child.key.name}: goes" for child in deleted]

    @property
    def is_accepted(self) -> bool:
        """Return whether what is asked for is rolled out and not being compared any more."""
        return self.done and self.watch is None

    @property
    def updates(self) -> bool:
        """Return whether an update is under way that is not accepted yet, so that what served before is kept."""
        aim = self.aim
        return aim is not None and self.good not in ("", aim.revision.name) and not self.is_accepted
