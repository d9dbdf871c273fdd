"""The lifecycle of a service: revisions, canaries, rollback, gates, and its status. Pure."""

from modelyard.workloads.roll_out.gates import GateReading, GateWatch
from modelyard.workloads.roll_out.lifecycle import RollOut, ServiceRollOut
from modelyard.workloads.roll_out.resolution import (
    ACCEPT,
    MODEL,
    RUNTIME,
    Resolved,
    accelerator_classes,
    find_model,
    offered_runtimes,
    rank,
    recorded,
)
from modelyard.workloads.roll_out.returning import DEADLINE
from modelyard.workloads.roll_out.roll_out_report import EngineAnswer, change_lines, component_rows, service_result
from modelyard.workloads.roll_out.rollout_state import Standing
from modelyard.workloads.roll_out.runtime_status import RUNTIME_STATUSES
from modelyard.workloads.roll_out.standing import floor, is_workload
from modelyard.workloads.roll_out.story import LATEST, READY, as_asked, record, slim
from modelyard.workloads.roll_out.world import (
    ACCELERATOR_CLASSES,
    BINDINGS,
    CLASSES_SERVED,
    INFERENCE_SERVICES,
    MODELS,
    MODELS_WANTED,
    RUNTIMES,
    RUNTIMES_WANTED,
    SERVED_MODELS_WANTED,
    SERVICES_WANTED,
    VARIANTS,
    Offered,
    OfferedRuntime,
    OwnLabels,
    StoredService,
    classes_wanted,
)
