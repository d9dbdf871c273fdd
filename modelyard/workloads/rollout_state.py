"""State of a roll-out, from which a plan is made: what a service names, its children and its components. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from modelyard.objects.kinds import CONTROLLER_REVISIONS
from modelyard.reconcile.plan import Plan
from modelyard.workloads.changes import Changes, Identity, differences, identity
from modelyard.workloads.gates import GateWatch
from modelyard.workloads.resolution import Resolved
from modelyard.workloads.returning import Aim
from modelyard.workloads.standing import ComponentStanding
from modelyard.workloads.values import Refused, Rendered
from modelyard.workloads.world import StoredChild, StoredService

PENDING = "MetadataPending"
"""Reason of a service whose model's files have not been read yet."""


@dataclass(frozen=True, slots=True)
class Standing:
    """All that a plan for a service knows: what was resolved, what came of it, what differs, how components stand."""

    service: StoredService
    resolved: Resolved
    result: Rendered | Refused
    changes: Changes = field(default_factory=Changes)
    states: Mapping[str, ComponentStanding] = field(default_factory=dict)
    routed: bool = False
    """Whether what leads to its components is there."""
    there: Mapping[Identity, StoredChild] = field(default_factory=dict)
    """What is there under the names of its children, and all that is its own."""
    held: Sequence[str] = ()
    """What has changed beneath it and is not rolled out unless that is allowed."""
    aim: Aim | None = None
    """What is rolled out; ``None``: nothing new."""
    begun: bool = False
    """Whether all of its pods are asked for that may be by now."""
    good: str = ""
    """The revision that served last."""
    done: bool = False
    """Whether all of it is rolled out, so that nothing before it is kept any more."""
    canary: str = ""
    """What of it serves beside what was before, in words."""
    watch: GateWatch | None = None
    """How what is asked for is compared with what served before."""
    compared: str = ""
    """What came of that."""
    returned: str = ""
    """Why what it asks for was given up."""
    failed: ComponentStanding | None = None
    """The component for whose sake the update is given up by this very plan."""

    @property
    def problem(self) -> Refused | None:
        """Return why nothing is made of it."""
        return self.result if isinstance(self.result, Refused) else None

    @property
    def answers(self) -> bool:
        """Return whether requests can be served."""
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
