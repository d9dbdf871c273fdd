"""Which runtime serves a model, and why each other one does not: ``select``, with no I/O."""

from modelyard.runtimes.accelerators import AcceleratorClass as AcceleratorClass, Constraints as Constraints
from modelyard.runtimes.admission import warnings as warnings
from modelyard.runtimes.selection import (
    NO_RUNTIME as NO_RUNTIME,
    Ranking as Ranking,
    RejectionReason as RejectionReason,
    RuntimeVerdict as RuntimeVerdict,
    named_keys as named_keys,
    not_found as not_found,
    select as select,
)
from modelyard.runtimes.values import (
    ModelView as ModelView,
    Runtime as Runtime,
    Wishes as Wishes,
    model_view as model_view,
    parse_model as parse_model,
    parse_runtime as parse_runtime,
    parse_wishes as parse_wishes,
)
