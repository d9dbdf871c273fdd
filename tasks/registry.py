"""Every lifecycle that runs carry out: how it is made, how its runs are started, and the names of its steps.

A new lifecycle is a package of its own below ``modelyard`` and an entry here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field

from modelyard.benchmarks.jobs import RE_RUN, BenchmarkRuns
from modelyard.metrics.prometheus import PrometheusSettings
from modelyard.models.delivery import KINDS as MODEL_KINDS, NUDGE, ModelDelivery
from modelyard.objects import Key, ResourceType
from modelyard.onboarding.planning import Onboarding
from modelyard.reconcile.kernel import Registered, RunView
from modelyard.reconcile.plans import Acting, Lifecycle, StepId
from modelyard.routing import ROUTES, RouteRollOuts
from modelyard.workloads.kthena import ModelRollOut
from modelyard.workloads.roll_out import RollOut, ServiceRollOut
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
        return self.title.format(object=key.label, item=step.item)


@dataclass(frozen=True, slots=True)
class LifecycleEntry:
    """A registered lifecycle: how it is made for a run, with the controller's namespace, and the ``flow`` of its runs.

    ``reconcile`` starts runs of the deployment of that name, with ``batch`` objects each (0: it starts none), and with
    these ``parameters``. The flow ``carry-out`` runs any lifecycle that has no flow of its own.
    """

    create: Callable[[str], Lifecycle]
    steps: Mapping[str, StepKind] = field(default_factory=dict)
    flow: str = "carry-out"
    batch: int = 1
    parameters: Mapping[str, object] = field(default_factory=dict)
    watch: Callable[[str], Lifecycle] | None = None
    """Factory for the shift of ``reconcile``, where it differs: no readings are taken there."""
    retry: str = ""
    """Annotation that requests another attempt at what has failed for an object; empty where every run tries."""


def _delivery(kind: ResourceType) -> LifecycleEntry:
    return LifecycleEntry(
        lambda home: ModelDelivery(kind, home),
        {
            "fetch": StepKind("fetch {object} to {item}", observe=read_transfer),
            "verify": StepKind("verify {object} on {item}", observe=read_transfer),
            "remove": StepKind("remove {object} from {item}"),
            "inspect": StepKind("inspect the claim of {object}"),
        },
        flow="deliver",
        parameters={"kind": kind.kind},
        retry=NUDGE,
    )


def _roll_out(lifecycle: type[RollOut]) -> LifecycleEntry:
    return LifecycleEntry(
        lambda home: lifecycle(home, prometheus=PrometheusSettings().base_url, readings={}),
        {
            "resolve": StepKind("resolve {object}"),
            "roll out": StepKind("roll out {item} of {object}"),
            "compare": StepKind("compare {object} with its previous revision", observe=compare_revisions),
            "become ready": StepKind("wait until {object} is ready"),
        },
        flow="roll-out",
        batch=20,
        parameters={"kind": lifecycle.about.kind},
        watch=lambda home: lifecycle(home, prometheus=PrometheusSettings().base_url),
    )


_BENCHMARK = LifecycleEntry(
    BenchmarkRuns,
    {
        "prepare": StepKind("prepare the target of {object}", in_order=True),
        "measure": StepKind("measure {item} for {object}", in_order=True),
    },
    flow="benchmark",
    batch=10,
    retry=RE_RUN,
)
_ROUTE = LifecycleEntry(
    lambda home: RouteRollOuts(PrometheusSettings().base_url, {}),
    {
        "wait for the server": StepKind("wait for the server of {object}", in_order=True),
        "shift": StepKind("shift {item} of {object}", in_order=True, observe=compare_servers),
        "roll back": StepKind("roll back {object}", in_order=True),
    },
    flow="roll-out",
    parameters={"kind": ROUTES.kind},
    watch=lambda home: RouteRollOuts(PrometheusSettings().base_url),
)

_ONBOARDING = LifecycleEntry(
    lambda home: Onboarding(),
    {
        "deliver": StepKind("deliver the model of {object}", observe=follow_children),
        "select": StepKind("select candidates for {object}"),
        "roll out": StepKind("roll out {item}", observe=follow_children),
        "measure": StepKind("measure {item}", observe=follow_children),
        "remove": StepKind("remove {item}"),
        "serve": StepKind("serve {object}", observe=follow_children),
    },
    flow="onboard",
    batch=0,
)

REGISTRY: Mapping[str, LifecycleEntry] = {
    **{f"deliver-{kind.plural}": _delivery(kind) for kind in MODEL_KINDS},
    **{lifecycle.name: _roll_out(lifecycle) for lifecycle in (ServiceRollOut, ModelRollOut)},
    BenchmarkRuns.name: _BENCHMARK,
    RouteRollOuts.name: _ROUTE,
    Onboarding.name: _ONBOARDING,
}


def acting_lifecycles(home: str) -> Iterator[Registered]:
    """Yield the lifecycles whose runs the shift of ``reconcile`` starts; ``home`` is the controller's namespace."""
    for name, entry in REGISTRY.items():
        if entry.batch:
            given = {**entry.parameters, "controller_namespace": home}
            given |= {"lifecycle": name} if entry.flow == "carry-out" else {}
            acting = Acting(f"{entry.flow}/{entry.flow}", entry.batch, given)
            yield Registered((entry.watch or entry.create)(home), acting)


def step_kind(lifecycle: str, step: StepId) -> StepKind:
    """Return how a step is shown; what belongs to no step is the status of the object."""
    return REGISTRY[lifecycle].steps.get(step.name, StepKind(f"{step.name or 'publish status'} of {{object}}"))
