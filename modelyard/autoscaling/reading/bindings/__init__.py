"""Policy bindings, their targets, pods and measured values, read from Kubernetes objects. Pure."""

from modelyard.autoscaling.reading.bindings import objects
from modelyard.autoscaling.reading.bindings.gauges import Gauges, PolicyCollector, gauges_of
from modelyard.autoscaling.reading.bindings.objects import (
    ROLE,
    SOURCES,
    Backends,
    BindingSpec,
    PolicySpec,
    TargetSpec,
    backends_of,
    resolve_workload,
    within_reach,
    workload_of,
)
from modelyard.autoscaling.reading.bindings.pods import OWNER, Instance, TargetPods, owners_of, target_pods
from modelyard.autoscaling.reading.bindings.values import Histories
from modelyard.autoscaling.reading.bindings.views import (
    ListedBindings,
    TargetPlan,
    binding_view,
    give_way,
    policy_of,
    scrapes,
    target_plans,
)
