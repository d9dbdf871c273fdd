"""Who scales a Model: an AutoscalingPolicy and its bindings, for all backends together or for each. Pure.

Source: Kthena Model controller reference, "Policy and binding" and "AutoscalingPolicy defaulting".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from modelyard.resources import (
    REGISTRY,
    ROLE_RATIO,
    SCALE_TO_ZERO_GRACE,
    WAKE_QUERY,
    AutoscalingPolicyBehavior,
    AutoscalingPolicyPanicPolicy,
    AutoscalingPolicyScaleUpPolicy,
    AutoscalingPolicySpec,
    AutoscalingPolicyStablePolicy,
    Duration,
    Model,
    ModelWorker,
)
from modelyard.resources.field_effects import DEFAULT_EXPANSION
from modelyard.workloads.kthena.setup import ENTRY, LWS, SCALED_ROLES, Setup, labels, metadata, role_of
from modelyard.workloads.kthena.unified import OWN, UNIFIED
from modelyard.workloads.kthena.workloads import LEADER_WORKER_SET, bounds, mode, role_name
from modelyard.workloads.rendering import MINDIE, Body, Problems, Refusal, fitting

_SPAN: Final = re.compile(r"[0-9][0-9./]{0,31}", re.ASCII)
_DOWN_WINDOW: Final = Duration("5m")
_NONE: Final = Duration("0s")


def scaling(model: Model, setups: Sequence[Setup]) -> list[Body]:
    """Return the policy and bindings of a Model, the policies first. Raises ``Refusal`` with all that is wrong.

    ``setups`` may lack backends that cannot be used; with a policy of the Model it has all.
    """
    if model.spec.autoscaling_policy is not None:
        name, spec = fitting(model.name), _policy(model.spec.autoscaling_policy, setups, "spec.autoscalingPolicy")
        params = [
            {"cost": one.backend.scaling_cost or 0, **_target(one, one.backend.workers[0], one.name)} for one in setups
        ]
        rate = model.spec.cost_expansion_rate_percent
        shared = {"costExpansionRatePercent": DEFAULT_EXPANSION if rate is None else rate, "params": params}
        binding = _binding(model, "", name, name, {"optimizerConfiguration": shared}, _graces(setups))
        return [_object(model, "", "AutoscalingPolicy", name, spec), binding]
    bodies: list[Body] = []
    problems = Problems()
    for setup in setups:
        if setup.backend.autoscaling_policy is not None:
            with problems.collect():
                bodies += _of_backend(setup, setup.backend.autoscaling_policy)
    problems.raise_all()
    return bodies


def _graces(setups: Sequence[Setup]) -> str:
    graces = {setup.name: setup.backend.scale_to_zero_grace_period for setup in setups}
    if len(set(graces.values())) == 1:
        return _text(next(iter(graces.values())))
    return ",".join(f"{name}={grace}" for name, grace in graces.items() if grace is not None)


def _text(grace: Duration | None) -> str:
    return "" if grace is None else str(grace)


def _of_backend(setup: Setup, policy: AutoscalingPolicySpec) -> list[Body]:
    model, backend = setup.model, setup.backend
    spec = _policy(policy, [setup], f"{setup.path}.autoscalingPolicy")
    name = fitting(f"{model.name}-{backend.name}")
    bodies = [_object(model, backend.name, "AutoscalingPolicy", name, spec)]
    for called, worker, target in _scaled(setup):
        configuration = {"scalingConfiguration": _target(setup, worker, target)}
        grace = _text(backend.scale_to_zero_grace_period)
        ratio = _ratio(setup, name) if worker.type == "prefill" else ""
        bodies.append(_binding(model, backend.name, called, name, configuration, grace, ratio))
    return bodies


def _scaled(setup: Setup) -> list[tuple[str, ModelWorker, str]]:
    base = fitting(f"{setup.model.name}-{setup.backend.name}")
    if not setup.disaggregated:
        return [(base, setup.backend.workers[0], setup.name)]
    roles = [worker for worker in setup.backend.workers if worker.type in SCALED_ROLES]
    return [(fitting(f"{base}-{one.type}"), one, role_name(setup, 0, role_of(one))) for one in roles]


def _ratio(setup: Setup, base: str) -> str:
    replicas = {one.type: one.replicas or 1 for one in setup.backend.workers}
    span = str(_annotations(setup.model).get(ROLE_RATIO) or f"{replicas['prefill']}/{replicas['decode']}")
    if not _SPAN.fullmatch(span):
        raise Refusal("InvalidSpec", f"metadata.annotations[{ROLE_RATIO}]", "is no ratio", "write it as 1/4..1, or 1/2")
    return f"{fitting(f'{base}-decode')}={span}"


def _annotations(model: Model) -> Mapping[str, object]:
    return (model.metadata.model_extra or {}).get("annotations") or {}


def _target(setup: Setup, worker: ModelWorker, name: str) -> Body:
    grouped = mode(setup) == LEADER_WORKER_SET
    version, kind = (LWS, LEADER_WORKER_SET) if grouped else ("apps/v1", "Deployment")
    least, most = bounds(setup, worker)
    return {
        "maxReplicas": most,
        "minReplicas": least,
        "target": {
            "additionalMatchLabels": dict(ENTRY),
            "metricEndpoint": setup.metric_endpoint,
            "targetRef": {"apiVersion": version, "kind": kind, "name": name},
        },
    }


def _binding(
    model: Model, backend: str, name: str, policy: str, configuration: Body, grace: str, ratio: str = ""
) -> Body:
    found = _object(model, backend, "AutoscalingPolicyBinding", name, {"policyRef": {"name": policy}, **configuration})
    marks = {SCALE_TO_ZERO_GRACE: grace, ROLE_RATIO: ratio, WAKE_QUERY: str(_annotations(model).get(WAKE_QUERY) or "")}
    if said := {mark: text for mark, text in marks.items() if text}:
        found["metadata"].setdefault("annotations", {}).update(said)
    return found


def _object(model: Model, backend: str, kind: str, name: str, spec: Body) -> Body:
    about = metadata(model, name, labels(model, backend))
    return {"apiVersion": REGISTRY, "kind": kind, "metadata": about, "spec": spec}


def _policy(policy: AutoscalingPolicySpec, setups: Sequence[Setup], path: str) -> Body:
    """The policy with its behaviour written out, so that everybody sees what is in effect."""
    given = policy.behavior or AutoscalingPolicyBehavior()
    up = given.scale_up or AutoscalingPolicyScaleUpPolicy()
    behavior = AutoscalingPolicyBehavior(
        scale_up=AutoscalingPolicyScaleUpPolicy(
            stable_policy=_stable(up.stable_policy, _NONE),
            panic_policy=up.panic_policy or AutoscalingPolicyPanicPolicy(period=_NONE),
        ),
        scale_down=_stable(given.scale_down, _DOWN_WINDOW),
    )
    found = policy.model_copy(update={"behavior": behavior}).model_dump(mode="json", by_alias=True, exclude_none=True)
    problems = Problems()
    for place, metric in enumerate(found["metrics"]):
        with problems.collect():
            metric["metricName"] = _own_name(metric["metricName"], setups, f"{path}.metrics[{place}].metricName")
    problems.raise_all()
    return found


def _stable(policy: AutoscalingPolicyStablePolicy | None, window: Duration) -> AutoscalingPolicyStablePolicy:
    given = policy or AutoscalingPolicyStablePolicy()
    if given.stabilization_window is not None:
        return given
    return given.model_copy(update={"stabilization_window": window})


def _own_name(name: str, setups: Sequence[Setup], path: str) -> str:
    if not name.startswith(UNIFIED):
        return name
    if any(setup.engine is MINDIE for setup in setups):
        text = f"{name} is not known of MindIE, whose metrics have other names"
        raise Refusal("InvalidSpec", path, text, "name a metric as the engine shows it")
    base = name.removeprefix(UNIFIED)
    own = {(setup.engine.name, OWN.get(setup.engine.server, {}).get(base, base)) for setup in setups}
    if len(own) > 1 or base not in OWN["vLLM"]:
        reason = "is called differently by the engines of the backends" if len(own) > 1 else "is not known"
        raise Refusal("InvalidSpec", path, f"{name} {reason}", "name a metric as the engine shows it")
    return ":".join(next(iter(own)))
