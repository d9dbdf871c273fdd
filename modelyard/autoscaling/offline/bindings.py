"""AutoscalingPolicyBindings for ``modelyard plan``: from manifests, with what a snapshot says was measured of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from modelyard.autoscaling.configuration import FleetSettings, PlanInputError
from modelyard.autoscaling.fleet import BindingView, TargetView, Workloads
from modelyard.autoscaling.offline.snapshot import PolicyEntry
from modelyard.autoscaling.reading.bindings import (
    Backends,
    BindingSpec,
    ListedBindings,
    PolicySpec,
    TargetSpec,
    backends_of,
    policy_of,
    workload_of,
)
from modelyard.autoscaling.variants import INSTANCE_LABEL
from modelyard.objects import Key

SILENT = "the metrics snapshot says nothing about it; add an entry under policies"


def is_ours(view: BindingView, settings: FleetSettings) -> bool:
    """Whether this controller handles the binding."""
    watched = settings.watch_namespace
    mine = view.labels.get(INSTANCE_LABEL) == (settings.controller_instance or None)
    return mine and not view.deleting and (not watched or view.key.namespace == watched)


def views_of(
    bindings: Sequence[BindingSpec], policies: Iterable[PolicySpec], workloads: Workloads
) -> tuple[BindingView, ...]:
    """The bindings, in key order, with their policies and workloads and nothing measured yet."""
    listed = ListedBindings(tuple(bindings), {policy.key: policy for policy in policies})
    backends = backends_of(workloads.values())
    views = []
    for binding in sorted(bindings, key=lambda binding: binding.view.key):
        policy, problem = policy_of(binding, listed)
        problems = filter(None, (binding.view.problem, problem))
        targets = tuple(_target(spec, workloads, backends) for spec in binding.targets)
        views.append(replace(binding.view, policy=policy, targets=targets, problem="; ".join(problems) or None))
    return tuple(views)


def _target(spec: TargetSpec, workloads: Workloads, backends: Backends) -> TargetView:
    workload, problem = workload_of(spec, workloads, backends)
    bare = TargetView(spec.name, spec.workload, spec.minimum, spec.maximum, spec.cost, grace=spec.grace)
    if workload is None:
        return replace(bare, problem=problem or nowhere(spec))
    current = 1 if workload.spec_replicas is None else workload.spec_replicas
    errors = (f"{workload.id}: {SILENT}",) if current else ()
    return replace(
        bare,
        workload=workload.id,
        current=current,
        ready=0,
        gpus=workload.gpus or 1,
        scrape_errors=errors,
        limits=workload.limits,
    )


def nowhere(spec: TargetSpec) -> str:
    """What is wrong with a target whose workload is not given."""
    kinds = " or ".join(id_.kind for id_ in spec.candidates)
    return f"{kinds} {spec.workload.namespace}/{spec.workload.name} is in none of the files; add its manifest with -f"


def measured(views: Iterable[BindingView], entries: Sequence[PolicyEntry]) -> tuple[BindingView, ...]:
    """The views with the snapshot's values. Raises ``PlanInputError`` for unknown or repeated targets and metrics."""
    views = tuple(views)
    said: dict[tuple[Key, str], PolicyEntry] = {}
    for number, entry in enumerate(entries):
        where = f"metrics snapshot: policies[{number}]"
        view = next((v for v in views if v.key == (entry.namespace, entry.binding)), None)
        if view is None:
            known = ", ".join(str(v.key) for v in views) or "none"
            raise PlanInputError(
                f"{where}: no AutoscalingPolicyBinding {entry.namespace}/{entry.binding}; there are: {known}"
            )
        name = _name(where, entry, view)
        if (view.key, name) in said:
            raise PlanInputError(f"{where}: target {name} of {view.key} is given twice; keep one entry")
        _check_metrics(where, entry, view)
        said[view.key, name] = entry
    return tuple(
        replace(view, targets=tuple(_with(target, said.get((view.key, target.name))) for target in view.targets))
        for view in views
    )


def _name(where: str, entry: PolicyEntry, view: BindingView) -> str:
    names = [target.name for target in view.targets]
    if not names:
        raise PlanInputError(f"{where}: nothing of {view.key} is scaled: {view.problem or 'it names no target'}")
    if entry.target is None and len(names) > 1:
        raise PlanInputError(f"{where}.target: {view.key} has several; name one of {', '.join(names)}")
    if entry.target is not None and entry.target not in names:
        raise PlanInputError(f"{where}.target: {entry.target!r} is no target of {view.key} ({', '.join(names)})")
    return names[0] if entry.target is None else entry.target


def _check_metrics(where: str, entry: PolicyEntry, view: BindingView) -> None:
    if view.policy is None:
        return
    wanted = view.policy.targets
    named = [(f"instances[{index}]", name) for index, one in enumerate(entry.instances) for name in one]
    named += [("external", name) for name in entry.external]
    for place, name in named:
        if name not in wanted:
            raise PlanInputError(
                f"{where}.{place}: AutoscalingPolicy {view.policy.key} has no metric {name!r}; it has "
                f"{', '.join(wanted)}"
            )


def _with(target: TargetView, entry: PolicyEntry | None) -> TargetView:
    if entry is None or target.current is None:
        return target
    return replace(
        target,
        ready=len(entry.instances),
        unready=entry.unready,
        instances=tuple(entry.instances),
        external=dict(entry.external),
        demand=entry.demand,
        startup_seconds=entry.startup_seconds,
        scrape_errors=tuple(entry.problems),
    )


def remarks(views: Iterable[BindingView]) -> Iterator[str]:
    """Targets of which nothing is known although they run, and workloads that are missing."""
    for view in views:
        for target in view.targets:
            if target.problem:
                yield f"AutoscalingPolicyBinding {view.key}: {target.problem}"
            elif any(error.endswith(SILENT) for error in target.scrape_errors):
                yield f"AutoscalingPolicyBinding {view.key}: {target.scrape_errors[0]}"
