"""Kubernetes values that every room speaks, and how they are read: no client, no clock."""

from modelyard.objects import parse
from modelyard.objects.accelerators import PRODUCT_LABELS, VARIABLE, count, family_of, partition_of, product_of_node
from modelyard.objects.cli_marker import Cli
from modelyard.objects.collector import collector_paused
from modelyard.objects.deployment_modes import (
    MODE,
    MODES,
    MULTI_NODE,
    OF_RUNTIMES,
    RAW,
    RAY,
    SERVERLESS,
    SPLIT,
    VIRTUAL,
)
from modelyard.objects.documents import (
    MAX_TEXT,
    SHOWN,
    DocumentError,
    PlainLoader,
    amount,
    check_aliases,
    counted,
    cut,
    few,
    first_fault,
    first_of,
    items_of,
    listed,
    mapping,
    mappings,
    parse_document,
    printable,
    shown,
)
from modelyard.objects.durations import LONGEST, PATTERN, UNITS, nanoseconds, parse_go_duration
from modelyard.objects.kinds import (
    CONFIG_MAPS,
    CONTROLLER_REVISIONS,
    CRDS,
    DEPLOYMENTS,
    EVENTS,
    JOBS,
    LEASES,
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    REPLICA_SETS,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    STATEFUL_SETS,
    ResourceType,
)
from modelyard.objects.limits import (
    CONTROLLER_NAMESPACE,
    LARGEST_INTEGER,
    LONGEST_LABEL,
    LONGEST_MESSAGE,
    LONGEST_MODEL_NAME,
    LONGEST_NAME,
    LONGEST_PROBLEM,
    TERMINATION_MESSAGE_BYTES,
)
from modelyard.objects.markdown import cells, plain, unformatted
from modelyard.objects.old_servers import (
    HPA_VERSIONS,
    PDB_VERSIONS,
    in_order,
    removal_of_added_entries,
    warn_of_dropped_fields,
    warn_of_dropped_schemas,
)
from modelyard.objects.parse import (
    MAX_ARGUMENTS,
    REQUIRED,
    Object,
    annotations_of,
    condition,
    conditions,
    container_gpus,
    controller_of,
    describe_owner_problem,
    epoch,
    key_of,
    namespace,
    node,
    pod,
    required_terms,
    stored_status,
    target_id,
    texts,
    timestamp,
)
from modelyard.objects.selectors import Matcher, parse_selector
from modelyard.objects.urls import bare, check_http_url, describe_url_problem
from modelyard.objects.values import (
    Condition,
    Key,
    Namespace,
    Node,
    Notice,
    OwnerRef,
    Pod,
    ReplicaLimits,
    TargetRef,
    Workload,
    WorkloadId,
)
