"""Plans as values: what a lifecycle wants to write, await and report, and when its runs start. Pure."""

from modelyard.reconcile.plans import status
from modelyard.reconcile.plans.cadence import Cadence, Slot, shift_cadence
from modelyard.reconcile.plans.claims import Claim
from modelyard.reconcile.plans.dispatch import (
    RETRIES,
    UNATTENDED_SECONDS,
    Acting,
    Dispatch,
    KnownRuns,
    RunFate,
    Start,
    awaited_run,
    child_claim,
    dispatch,
    fingerprint,
    is_due,
    is_free,
    is_own_key,
    named,
    pause_after,
    with_awaited_run,
)
from modelyard.reconcile.plans.memory import Count, Seconds, parse_memory, render_memory
from modelyard.reconcile.plans.object_result import ObjectResult, ResultState, failures
from modelyard.reconcile.plans.plan import (
    CLAIM,
    FAILED,
    LARGEST,
    LOOK_UPS,
    MISSING,
    OWNER,
    WHOLE_MAPS,
    Adapting,
    Child,
    Enumerating,
    HandOver,
    Lifecycle,
    Mark,
    OfSubject,
    Plan,
    PlanStep,
    Presence,
    Ref,
    Scale,
    ServedKind,
    Status,
    StepId,
    StepPhase,
    Store,
    Subject,
    Want,
    World,
    settings_wanted,
    wish_of,
)
from modelyard.reconcile.plans.reach import NOT_PERMITTED, refusal
from modelyard.reconcile.plans.report import Change, Row, ShiftReport, TickReport, table
from modelyard.reconcile.plans.run_limits import PLACES, RUNS, ActiveRun, RunAdmission, RunLimits, RunLoad
from modelyard.reconcile.plans.spec_warning import FIELDS_IGNORED, with_spec_warning
from modelyard.reconcile.plans.status import is_status_due, status_plan
from modelyard.reconcile.plans.steps import part_of, pending_steps, state_of, with_steps
from modelyard.reconcile.plans.write_rules import NO_CHILDREN, WriteRules
