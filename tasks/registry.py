"""Every lifecycle that runs carry out: how it is made, and what its steps are called.

A new lifecycle is a package of its own below ``modelyard`` and an entry here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from modelyard.benchmarks.lifecycle import BenchmarkRuns
from modelyard.benchmarks.world import RE_RUN
from modelyard.metrics.client import PrometheusSettings
from modelyard.models.lifecycle import ModelDelivery
from modelyard.models.names import KINDS as MODEL_KINDS
from modelyard.models.world import NUDGE
from modelyard.objects import Key, ResourceType
from modelyard.onboarding.lifecycle import Onboarding
from modelyard.reconcile.plan import Lifecycle, StepId
from modelyard.reconcile.run_view import RunView
from modelyard.routing.route_roll_out import RouteRollOuts
from modelyard.workloads.kthena.lifecycle import ModelRollOut
from modelyard.workloads.lifecycle import RollOut, ServiceRollOut
from tasks.observe import compare_revisions, compare_servers, follow_children, read_transfer

Observe = Callable[[RunView, str, Key, StepId], Awaitable[float]]
"""Takes readings for a step, or follows its child run, while it runs: the run, the controller's namespace, the object.
Returns the seconds until it is called again."""


@dataclass(frozen=True, slots=True)
class StepKind:
    """A step as people see it: the name of its task runs, with ``{object}`` and ``{item}``.

    ``in_order``: one step of an object follows the other, and the progress of each is that of the object.
    """

    title: str
    in_order: bool = False
    observe: Observe | None = None

    def name(self, key: Key, step: StepId) -> str:
        """Return the name of the step's task run."""
        return self.title.format(object=str(key) if key.namespace else key.name, item=step.item)


@dataclass(frozen=True, slots=True)
class LifecycleEntry:
    """A registered lifecycle: its ``flow``, and how it is made for a run, with the controller's namespace."""

    flow: str
    create: Callable[[str], Lifecycle]
    steps: Mapping[str, StepKind] = field(default_factory=dict)
    retry: str = ""
    """Annotation that requests another attempt at what has failed for an object; empty where every run tries."""


def _delivery(kind: ResourceType) -> LifecycleEntry:
    return LifecycleEntry(
        "deliver",
        lambda home: ModelDelivery(kind, home),
        {
            "fetch": StepKind("fetch {object} to {item}", observe=read_transfer),
            "verify": StepKind("verify {object} on {item}", observe=read_transfer),
            "remove": StepKind("remove {object} from {item}"),
            "inspect": StepKind("inspect the claim of {object}"),
        },
        retry=NUDGE,
    )


def _roll_out(lifecycle: type[RollOut]) -> LifecycleEntry:
    return LifecycleEntry(
        "roll-out",
        lambda home: lifecycle(home, prometheus=PrometheusSettings().base_url, readings={}),
        {
            "resolve": StepKind("resolve {object}"),
            "roll out": StepKind("roll out {item} of {object}"),
            "compare": StepKind("compare {object} with its previous revision", observe=compare_revisions),
            "become ready": StepKind("wait until {object} is ready"),
        },
    )


_BENCHMARK = LifecycleEntry(
    "benchmark",
    BenchmarkRuns,
    {
        "prepare": StepKind("prepare the target of {object}", in_order=True),
        "measure": StepKind("measure {item} for {object}", in_order=True),
    },
    retry=RE_RUN,
)
_ROUTE = LifecycleEntry(
    "roll-out",
    lambda home: RouteRollOuts(PrometheusSettings().base_url, {}),
    {
        "wait for the server": StepKind("wait for the server of {object}", in_order=True),
        "shift": StepKind("shift {item} of {object}", in_order=True, observe=compare_servers),
        "roll back": StepKind("roll back {object}", in_order=True),
    },
)

_ONBOARDING = LifecycleEntry(
    "onboard",
    lambda home: Onboarding(),
    {
        "deliver": StepKind("deliver the model of {object}", observe=follow_children),
        "select": StepKind("select candidates for {object}"),
        "roll out": StepKind("roll out {item}", observe=follow_children),
        "measure": StepKind("measure {item}", observe=follow_children),
        "remove": StepKind("remove {item}"),
        "serve": StepKind("serve {object}", observe=follow_children),
    },
)

REGISTRY: Mapping[str, LifecycleEntry] = {
    **{f"deliver-{kind.plural}": _delivery(kind) for kind in MODEL_KINDS},
    **{lifecycle.name: _roll_out(lifecycle) for lifecycle in (ServiceRollOut, ModelRollOut)},
    BenchmarkRuns.name: _BENCHMARK,
    RouteRollOuts.name: _ROUTE,
    Onboarding.name: _ONBOARDING,
}
"""By the name of the lifecycle."""


def step_kind(lifecycle: str, step: StepId) -> StepKind:
    """Return how a step is shown; what belongs to no step is the status of the object."""
    return REGISTRY[lifecycle].steps.get(step.name, StepKind(f"{step.name or 'publish status'} of {{object}}"))
