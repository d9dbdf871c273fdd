"""The views of bindings, put together from what was listed, scraped and asked. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from modelyard.autoscaling.bindings import Rival, conflicts, outside
from modelyard.autoscaling.fleet import BindingView, PolicyView, TargetView
from modelyard.autoscaling.reading.bindings.objects import BindingSpec, PolicySpec, TargetSpec
from modelyard.autoscaling.reading.bindings.pods import TargetPods
from modelyard.autoscaling.reading.bindings.values import Measured, demand_metrics
from modelyard.metrics.vocabulary import Answers, Scrape
from modelyard.objects import Key, Workload, few
from modelyard.resources import WAKE_QUERY


@dataclass(frozen=True, slots=True)
class ListedBindings:
    """The bindings of this loop and the policies they name, as stored."""

    bindings: tuple[BindingSpec, ...] = ()
    policies: Mapping[Key, PolicySpec] = field(default_factory=dict)
    policies_error: str | None = None
    others: tuple[Rival, ...] = ()

    @property
    def homes(self) -> list[str]:
        """Namespaces of the targets, in which rivals (HPAs ...) have to be looked for as well."""
        return sorted({target.workload.namespace for binding in self.bindings for target in binding.targets})


@dataclass(slots=True)
class TargetPlan:
    """One target while it is being put together."""

    spec: TargetSpec
    workload: Workload | None
    problem: str | None
    pods: TargetPods
    metrics: tuple[str, ...] = ()
    active: bool = False

    @property
    def wanted(self) -> frozenset[str]:
        """Families to keep of its pods' pages; none: no need to scrape."""
        if not self.active:
            return frozenset()
        return frozenset((*self.metrics, *(demand_metrics() if self.spec.minimum == 0 else ())))


def policy_of(binding: BindingSpec, listed: ListedBindings) -> tuple[PolicyView | None, str | None]:
    """The policy, and what is wrong with it or with the binding's use of it; neither where no policy has the name."""
    found = listed.policies.get(Key(binding.view.key.namespace, binding.view.policy_name))
    if found is not None:
        return found.view, found.problem if found.view is None else binding.source_problem(found.view)
    if listed.policies_error is not None:
        return None, f"AutoscalingPolicies could not be listed: {listed.policies_error}"
    return None, None


def target_plans(
    binding: BindingSpec,
    listed: ListedBindings,
    find: Callable[[TargetSpec], tuple[Workload | None, str | None, TargetPods]],
) -> list[TargetPlan]:
    """The targets of a binding, each with the workload and the pods that ``find`` gives, or why there are none."""
    policy, problem = policy_of(binding, listed)
    active = policy is not None and problem is None and binding.view.problem is None
    plans = []
    for spec in binding.targets:
        outside = {*binding.sources.get("", ()), *binding.sources.get(spec.name, ())}
        inside = () if policy is None else tuple(metric for metric in policy.targets if metric not in outside)
        plans.append(TargetPlan(spec, *find(spec), inside, active))
    return plans


def give_way(bindings: Iterable[BindingSpec], plans: Mapping[Key, Sequence[TargetPlan]]) -> None:
    """Ask nothing of the pods of bindings that are not decided on, since an older one scales a target of theirs."""
    claims = []
    for one in bindings:
        ids = (plan.spec.workload if plan.workload is None else plan.workload.id for plan in plans[one.view.key])
        claims.append(replace(one.view, targets=tuple(TargetView(id_.name, id_, 0, 0) for id_ in ids)))
    for key in conflicts(claims):
        for plan in plans[key]:
            plan.active = False


def scrapes(plans: Iterable[Sequence[TargetPlan]]) -> dict[Scrape, set[str]]:
    """Every page once, with the families that any target wants of it."""
    found: dict[Scrape, set[str]] = {}
    for plan in (plan for targets in plans for plan in targets):
        if wanted := plan.wanted:
            for endpoint in (endpoint for instance in plan.pods.instances for endpoint in instance.endpoints):
                found.setdefault(Scrape(endpoint, plan.spec.port, plan.spec.uri), set()).update(wanted)
    return found


def binding_view(
    binding: BindingSpec, listed: ListedBindings, plans: list[TargetPlan], answers: Answers, measured: Measured
) -> BindingView:
    """The binding with its policy, its targets and what is wrong with any of them."""
    policy, problem = policy_of(binding, listed)
    read = [_target(plan, measured) for plan in plans]
    targets, tells = [target for target, _ in read], [tells for _, tells in read]
    if policy is not None:
        targets = _with_external(targets, binding, policy, answers)
    if binding.wake_query:
        targets = _with_pending(targets, tells, answers[binding.expression(binding.wake_query)])
    problems = filter(None, (binding.view.problem, problem))
    view = replace(binding.view, targets=tuple(targets), policy=policy, problem="; ".join(problems) or None)
    return replace(view, rivals=outside(view, listed.others)) if listed.others else view


def _target(plan: TargetPlan, measured: Measured) -> tuple[TargetView, bool]:
    spec, workload, pods = plan.spec, plan.workload, plan.pods
    if workload is None:
        bare = TargetView(spec.name, spec.workload, spec.minimum, spec.maximum, spec.cost, grace=spec.grace)
        return replace(bare, problem=plan.problem), False
    reading = measured.read(pods.instances, spec.port, spec.uri, plan.metrics)
    errors = [*([pods.problem] if pods.problem else []), *reading.errors]
    view = TargetView(
        name=spec.name,
        workload=workload.id,
        minimum=spec.minimum,
        maximum=spec.maximum,
        cost=spec.cost,
        current=1 if workload.spec_replicas is None else workload.spec_replicas,
        ready=len(pods.instances),
        unready=pods.unready,
        instances=reading.instances,
        demand=reading.demand,
        scrape_errors=tuple(few(errors)),
        unknown=reading.unknown,
        startup_seconds=pods.startup_seconds,
        gpus=workload.gpus or 1,
        limits=workload.limits,
        grace=spec.grace,
    )
    return view, reading.tells_demand


def _with_external(
    targets: list[TargetView], binding: BindingSpec, policy: PolicyView, answers: Answers
) -> list[TargetView]:
    """A total of the whole binding is put on its first readable target, so that it counts once."""
    first = next((target.name for target in targets if target.current is not None), None)
    result = []
    for target in targets:
        whole = binding.sources.get("", {}) if target.name == first else {}
        queries = {**whole, **binding.sources.get(target.name, {})}
        found: dict[str, float] = {}
        errors = []
        unknown = set(target.unknown)
        for metric, query in queries.items():
            if metric not in policy.targets:
                continue
            value = answers[binding.expression(query)]
            if isinstance(value, str):
                errors.append(f"metric {metric}: {value}")
                unknown.add(metric)
            else:
                found[metric] = value
        told = (*target.scrape_errors, *errors)
        result.append(replace(target, external=found, scrape_errors=told, unknown=frozenset(unknown)))
    return result


def _with_pending(targets: list[TargetView], tells: list[bool], pending: float | str) -> list[TargetView]:
    """The demand that waits outside is demand of every target: any of them could take it.

    An expression that gives no number leaves unknown what is not known to be positive: unknown is never idle. Where
    the pods have no say about demand (``tells``), the expression alone counts; but pods of which none is ready yet,
    or none any more, were not asked: they are no proof that nobody wants them.
    """
    result = []
    for target, told in zip(targets, tells, strict=True):
        if isinstance(pending, str):
            errors = (*target.scrape_errors, f"annotation {WAKE_QUERY}: {pending}")
            result.append(replace(target, demand=target.demand or None, scrape_errors=errors))
            continue
        down = target.unready > 0 and not target.instances
        inside = target.demand if told or down else 0.0
        outside = max(0.0, pending)
        known = inside is not None or outside > 0
        result.append(replace(target, demand=(inside or 0.0) + outside if known else None))
    return result
