"""State of the fleet that a decision is made from: variants, policy bindings, accelerators, owners, quotas. Pure."""

from modelyard.autoscaling.fleet import owners
from modelyard.autoscaling.fleet.accelerators import (
    ACCELERATOR_LABEL,
    UNRESOLVED,
    pool_name,
    pool_of_node,
    product_of,
    published_short_name,
    short_name,
)
from modelyard.autoscaling.fleet.binding_view import (
    Behaviour,
    BindingView,
    DirectionLimits,
    Panic,
    PolicyView,
    TargetView,
)
from modelyard.autoscaling.fleet.fleet import Consumer, Fleet, SLOSpec, Variant, Workloads, shared_models
from modelyard.autoscaling.fleet.kinds import BINDINGS, CLUSTER_RUNTIMES, MODELS, POLICIES, RUNTIMES, SERVICES, VARIANTS
from modelyard.autoscaling.fleet.owners import Owners, owner_kind
from modelyard.autoscaling.fleet.provenance import NAMES, PROVENANCE, engine_of, provenance
from modelyard.autoscaling.fleet.quotas import Quota
from modelyard.autoscaling.fleet.startup import learn_startup
