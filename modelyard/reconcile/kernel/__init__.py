"""The kernel of all lifecycles: watch objects, plan, and write plans to the cluster under a fence."""

from modelyard.reconcile.kernel.carry_out import Outcome, carry_out
from modelyard.reconcile.kernel.fence import Fence, take
from modelyard.reconcile.kernel.mirror import CONCURRENCY, Mirror, Store
from modelyard.reconcile.kernel.reconciler import Plans, Reconciler, Registered
from modelyard.reconcile.kernel.run_view import (
    LONGEST_WAIT,
    Acted,
    RunView,
    StayLimits,
    Superseded,
    carry_out_step,
    look,
    run_steps,
)
from modelyard.reconcile.kernel.tell import Said, changes, tell
