"""Rendering of a service: complete Kubernetes objects, or a refusal that names field and remedy. Pure."""

from modelyard.workloads.rendering import engine_options, engines, lora, model_routes, names, settings
from modelyard.workloads.rendering.child_rules import child_rules
from modelyard.workloads.rendering.components import (
    INITIAL_REPLICAS,
    References,
    components,
    effective,
    pod_fields,
    references,
    runs_itself,
)
from modelyard.workloads.rendering.engines import MINDIE
from modelyard.workloads.rendering.files import ServedModel, check_claim, files, served
from modelyard.workloads.rendering.fine_tuned import subject
from modelyard.workloads.rendering.groups import GROUP, MOST_OBJECTS, headless_service, member_set
from modelyard.workloads.rendering.lora import loaded, loads_itself
from modelyard.workloads.rendering.merge import merge
from modelyard.workloads.rendering.model_routes import MAX_ADAPTERS, NETWORKING, Behind, served_name, taken, weights
from modelyard.workloads.rendering.names import (
    ENGINE,
    SERVICE,
    WORKER_INDEX,
    component,
    fitting,
    group_member,
    label_value,
)
from modelyard.workloads.rendering.node_constraints import with_nodes
from modelyard.workloads.rendering.pods import (
    ModelFiles,
    PodDraft,
    checked,
    checked_runner,
    in_group,
    with_env,
    with_files,
)
from modelyard.workloads.rendering.predictors import STORAGE_FIELD, migrates
from modelyard.workloads.rendering.reach import HOST_PATHS, by_annotations, check, rights
from modelyard.workloads.rendering.render import render
from modelyard.workloads.rendering.settings import CONFIG_MAP, GateSettings, ServingSettings
from modelyard.workloads.rendering.special import RDMA_PREFIX
from modelyard.workloads.rendering.values import (
    Abilities,
    Body,
    ChildObject,
    Note,
    Problems,
    Refusal,
    Refused,
    Rendered,
    Right,
    StoredChild,
    canonical,
    naming_backends,
    plain,
    read_resource,
    refused,
    unreadable,
)
