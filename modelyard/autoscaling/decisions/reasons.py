"""Every outcome of a decision: its public reason code and the text that explains it.

Stages produce an ``Explanation``: a reason with labelled values. Its text is rendered when a record is made or shown,
and nothing decides by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, unique
from typing import NamedTuple

from modelyard.objects import counted


@unique
class Reason(Enum):
    """An outcome: ``code`` is its public CamelCase code (empty: none), ``text`` a ``str.format`` template."""

    code: str
    text: str

    def __init__(self, code: str, text: str) -> None:
        self.code = code
        self.text = text

    # What cannot be decided on.
    EXCLUDED = "SkippedProcessing", "namespace {namespace} is excluded by annotation {annotation}"
    INVALID = "InvalidConfiguration", "{problem}"
    UNUSABLE = "InvalidConfiguration", "the object cannot be used: {error}"
    UNREADABLE_FORM = "InvalidConfiguration", "the object has a variantProfile, and its SLO form could not be read"
    NO_TARGET = "InvalidConfiguration", "{field} must name the workload to scale"
    ALREADY_SCALED = (
        "InvalidConfiguration",
        "{workload} is already scaled by VariantAutoscaling {elder}, which is older; "
        "give each variant a workload of its own",
    )
    TARGET_UNREADABLE = "TargetReadFailed", "{workload} could not be read: {error}; replicas are kept"
    TARGET_MISSING = "TargetNotFound", "{workload} does not exist"
    TARGET_DELETED = "TargetNotFound", "{workload} is being deleted"
    BEYOND_SHARE = "BeyondShare", "{refusal}; replicas are kept"
    MODES_MIXED = (
        "InvalidConfiguration",
        "{model} mixes compatibility modes: all its variants are decided in repaired mode",
    )
    ANALYZER_NOT_IN_MODE = (
        "AnalyzerNotAvailable",
        "analyzer {name!r} does not exist in {mode} mode; the percentage analysis decides",
    )
    FAILED = "OptimizationFailed", "{model}: deciding failed: {error}"
    NO_OBJECTIVE = "OptimizationFailed", "{problem}; replicas are kept"
    CAPPED = "", "of {replicas} no more than {upper} ({source})"
    KEPT = "", "replicas are kept"

    # Metrics.
    METRICS_FOUND = "MetricsFound", "the load and the request sizes of the model are known"
    METRICS_AVAILABLE = "MetricsAvailable", "Saturation metrics data is available for scaling decisions"
    NOTHING_TO_MEASURE = "MetricsUnavailable", "the workload is at zero replicas: there is no engine to measure"
    TARGET_NOT_MEASURED = "MetricsUnavailable", "{problem}: there is nothing to measure"
    PROMETHEUS_UNREADABLE = "PrometheusError", "Prometheus could not be read: {error}"
    QUERIES_FAILED = "PrometheusError", "no metrics for {model}: {problems}"
    LOAD_QUERIES_FAILED = "PrometheusError", "no load of {model}: {problems}"
    METRICS_STALE = "MetricsStale", "newest metrics of {model} are {age:.0f} s old, older than {limit:.0f} s"
    NO_MODEL_NAME = (
        "MetricsUnavailable",
        "its pods report no model name, the variant says {model}; add the label model_name where Prometheus scrapes "
        "them",
    )
    OTHER_MODEL_NAME = (
        "MetricsUnavailable",
        "its pods report {names}, the variant says {model}; set spec.modelID to what the engine reports, or the "
        "engine's --served-model-name to spec.modelID",
    )
    NOT_READY = "MetricsUnavailable", "no replica of {model} is ready yet (0 of {wanted})"
    OTHER_PODS = (
        "MetricsUnavailable",
        "metrics of {model} come from no ready pod of its variants; are all its workloads registered?",
    )
    NO_METRICS = (
        "MetricsUnavailable",
        "no metrics for {model}, {ready} ready: check that (1) a ServiceMonitor or PodMonitor exists for the pods, "
        "(2) its selector matches the Service's labels, (3) the pods serve /metrics, (4) Prometheus scrapes the "
        "namespace",
    )
    NO_LOAD = (
        "MetricsMissing",
        "{problem}: check that (1) a ServiceMonitor or PodMonitor exists for the pods, (2) its selector matches the "
        "Service's labels, (3) the pods serve /metrics, (4) Prometheus scrapes the namespace",
    )
    LOAD_UNKNOWN = "MetricsMissing", "the load of {model} is not known"
    LOAD_UNREADABLE = "MetricsMissing", "Prometheus could not be read: {error}"
    LOAD_NOT_DIVISIBLE = (
        "MetricsMissing",
        "the load of {model} cannot be split between its service classes: no completions known",
    )
    SIZES_MISSING = "MetricsMissing", "{finding}"
    VARIANT_SILENT = "MetricsUnavailable", "no replica of the variant reports metrics; replicas are kept"
    VARIANT_SILENT_INSTEAD = (
        "MetricsUnavailable",
        "no replica of the variant reports metrics; replicas are kept instead of {replicas}",
    )
    CACHES_UNKNOWN = (
        "MetricsUnavailable",
        "the KV cache size of no replica is known: the token analysis cannot decide; replicas are kept",
    )

    # Zero replicas.
    AT_ZERO = "AtZero", "{workload} is at zero replicas"
    BELOW_MINIMUM_AT_ZERO = "BelowMinimum", "the workload is at zero, below its minimum of {minimum} ({source})"
    WOKEN = "WokenByDemand", "{waiting} for the model, and nothing of it serves{started}: woken"
    WOKEN_TO = "WokenByDemand", "{waiting} for the model, and nothing of it serves{started}: woken to {replicas}"
    STARTED_BEFORE = "", "; what was started before can take {requests:.0f}"
    WAKING = "WokenByDemand", "woken before, waiting for its scaler to start {replicas}"
    NOT_WOKEN = "", "{waiting} and no variant may be woken (maximum 0, or pods that cannot be scheduled)"
    SCALED_TO_ZERO = "ScaledToZero", "{idle}: scaled to zero"
    NOT_SCALED_TO_ZERO = "", "not scaled to zero: {why}"
    MINIMUM_ONE = "MinimumOne", "scale-to-zero is not enabled for the model: the cheapest variant keeps one replica"
    NOTHING_IN_FLIGHT = "", "no request for {window} s and none in flight"
    NOTHING_COMPLETED = "", "no request completed for {window} s"
    REQUESTS_UNKNOWN = "", "the number of requests over {window} s is not known"
    GATEWAY_HOLDS = "", "{requests} queued at the gateway"
    GATEWAY_UNKNOWN = "", "the gateway's queue could not be read"
    SOME_SILENT = "", "{reporting} of {ready} ready replicas of {name} report"
    POD_SILENT = "", "pod {pod} does not say how many requests it holds"
    POD_BUSY = "", "pod {pod} holds {running:g} running and {waiting:g} waiting requests"
    STILL_STARTING = "", "{name} has {ready} of {current} replicas ready, the others are still starting"
    NOT_YET_IDLE = (
        "",
        "{name} is not yet idle for {retention:.0f} s since it was created, woken or ready ({left:.0f} s to go)",
    )

    # Saturation.
    PARTIAL_HOLD = (
        "PartialMetrics",
        "{reporting} of {ready} ready replicas report metrics: holding still, {left:.0f} s to go; {analysis}",
    )
    PARTIAL = "PartialMetrics", "{reporting} of {ready} ready replicas report metrics: not shrinking; {analysis}"
    ENOUGH_COMING = (
        "CapacityOnItsWay",
        "short of capacity, and enough is coming: need {wanted:.0f}{unit}, have {provided:.0f} with {coming} "
        "starting or warming up; {analysis}",
    )
    SHORT_OF_KV_CACHE = "KvCacheSpareLow", "short of capacity ({need}): {moves}; {analysis}"
    SHORT_OF_QUEUE = "QueueSpareLow", "short of capacity ({need}): {moves}; {analysis}"
    SHORT_OF_BOTH = "KvCacheAndQueueSpareLow", "short of capacity ({need}): {moves}; {analysis}"
    SHORT_OF_TOKENS = "TokenCapacityLow", "short of capacity ({need}): {moves}; {analysis}"
    CANNOT_GROW = "AtMaximum", "short of capacity ({need}), but no variant can grow: {why}; {analysis}"
    GROWING_AHEAD = "LoadRising", "{ahead}; need then {wanted:.0f}{unit}, have {provided:.0f}: {moves}; {analysis}"
    KEPT_FOR_RISE = "LoadRising", "could shrink, but {ahead}; {analysis}"
    IN_TRANSITION = "InTransition", "{transition}; {analysis}"
    AS_NEEDED = "SteadyState", "neither short of capacity nor safe to shrink; {analysis}"
    FEWER_TOO_FULL = "SteadyState", "as many as needed: fewer would each carry too much; {analysis}"
    ONLY_DURING_UPDATE = "SteadyState", "could shrink only while a rolling update runs {passing} extra; {analysis}"
    LAST_REPLICA_KEPT = "SteadyState", "{last}; {analysis}"
    LAST_REPLICA = "SteadyState", "Idle; keeping the last replica: scale to zero is off"
    LAST_REPLICA_MINIMUM = "SteadyState", "Idle; keeping the last replica: {source} is {minimum}"
    ALL_AT_MINIMUM = "AtMinimum", "could shrink, but every variant is at its minimum; {analysis}"
    SHRINK_DELAYED = "ScaleDownDelayed", "could shrink; waiting for {delay:.0f} s without a break; {analysis}"
    SHRINK_DELAYED_LONGER = (
        "ScaleDownDelayed",
        "could shrink; waiting for {delay:.0f} s without a break (longer than usual: what was given up lately was soon "
        "wanted back); {analysis}",
    )
    SHRINK_DELAYED_UNSEEN = (
        "ScaleDownDelayed",
        "could shrink, but without a known load only after {delay:.0f} s without a break",
    )
    BELOW_HPA_TOLERANCE = (
        "BelowHPATolerance",
        "could shrink by {step}, but an HPA ignores less than {least} of {replicas} replicas; {analysis}",
    )
    SHRINKING = "CapacitySpare", "more capacity than needed: {moves}; {analysis}"
    GIVEN_UP = (
        "TransitionTimedOut",
        "scaling {name} from {current} to {heading} did not happen within {limit:.0f} s: desired is reset to the real "
        "{current}",
    )
    HEADING = "InTransition", "in transition: {name} desired {base} ≠ current {current}{pod}"
    SURGING = "InTransition", "in transition: {name} has {surge} more than its {replicas} (rolling update){pod}"
    STARTING = "InTransition", "in transition: {name} has {ready} of {current} replicas ready{pod}"
    POD_UNSCHEDULABLE = "", " (pod {pod} cannot be scheduled: {why})"
    RISING = (
        "",
        "load is rising: {load:.3g} requests/s now, {expected:.3g} expected in {lead:.0f} s (× {factor:.2f}; {why})",
    )

    # Why a variant cannot grow.
    AT_BOUND = "", "{name} is at its {source} ({limit})"
    MAY_NOT_WAKE = "", "{name} is at zero and may not be woken"
    DID_NOT_START = "", "{name} did not get the replicas asked for before"
    FAR_AHEAD = "", "{name} is already far ahead of its {ready} ready replicas"
    NOT_STARTED_OR_FAR_AHEAD = "", "{name} did not get the replicas asked for before, or is far ahead of those ready"
    CANNOT_SCALE = "AtMaximum", "Cannot scale {name} {current} -> {wanted}: {why}{waiting}."
    CANNOT_START = "ReplicasNotStarting", "Cannot scale {name} {current} -> {wanted}: {why}{waiting}."
    MAXIMUM_IS = "", "{source} is {limit}"
    REQUESTS_WAIT = "", "; {waiting} waiting"
    ASKED_NOT_STARTED = "", "replicas asked for before did not start"

    # Latency targets.
    OBJECTIVE_UNREADABLE = "", "its latency targets could not be read: {error}"
    PROFILE_INVALID = "ProfileInvalid", "{problem}"
    PROFILE_VALID = "ProfileValid", "the performance profile is complete"
    PROFILE_LEARNT = (
        "ProfileLearnt",
        "learnt from what was seen of the engine: a step takes {alpha:.3g} ms, {beta:.2g} ms more with each request "
        "and {delta:.2g} ms with each prompt token",
    )
    FEASIBILITY_WITHOUT_PROFILE = (
        "ProfileInvalid",
        "without a valid profile it is not known whether the targets can be met",
    )
    FEASIBILITY_WITHOUT_SIZES = "RequestSizesUnknown", "request sizes are not known yet; an empty request would do"
    UNSIZED = "MetricsMissing", "the variant has not been sized"
    TTFT_UNREACHABLE = (
        "TargetBelowMinimumTTFT",
        "TTFT target {target:g} ms; lowest possible on this profile {best:.4g} ms: sized for the nearest feasible "
        "target; raise slo-ttft in {where}, or use a faster accelerator",
    )
    ITL_UNREACHABLE = (
        "TargetBelowMinimumITL",
        "ITL target {target:g} ms; lowest possible on this profile {best:.4g} ms: sized for the nearest feasible "
        "target; raise slo-tpot in {where}, or use a faster accelerator",
    )
    TTFT_ONLY_IDLE = (
        "TargetBelowMinimumTTFT",
        "TTFT target {target:g} ms; lowest possible on this profile {best:.4g} ms, by replicas with next to nothing "
        "to do: sized for {sized:.4g} ms; raise slo-ttft in {where}, or use a faster accelerator",
    )
    ITL_ONLY_IDLE = (
        "TargetBelowMinimumITL",
        "ITL target {target:g} ms; lowest possible on this profile {best:.4g} ms, by replicas with next to nothing "
        "to do: sized for {sized:.4g} ms; raise slo-tpot in {where}, or use a faster accelerator",
    )
    TARGETS_REACHABLE = "TargetsReachable", "TTFT {ttft} and ITL {itl} can be met"
    PROFILE_DRIFTED = (
        "LatenciesDiffer",
        "observed TTFT is {ttft:.2f} times, ITL {itl:.2f} times what the profile says, in steady state; sized for "
        "that, but measure the engine again and fit a new profile",
    )
    PROFILE_HOLDS = "ProfileHolds", "observed TTFT is {ttft:.2f} times, ITL {itl:.2f} times what the profile says"
    CLASS_NOT_FOUND = "SLOClassNotFound", "{problem}"
    PRICE_MISSING = (
        "UnitCostMissing",
        "ConfigMap {source} has no price for accelerator {accelerator!r}: add the key {accelerator} with a cost; "
        "until then a replica counts with spec.variantCost = {cost:g}",
    )
    NOT_LEARNT = "", "aims at latency targets once its engine's speed is learnt ({seen:.0f} of {least} observations)"
    OTHERS_NOT_LEARNT = "", "aims at latency targets once all its model's variants are learnt"
    ATTAINS = (
        "",
        "{rule}: {load:.3g} engines, for which {replicas} are needed; {replicas} would have held {held:.1f} % of the "
        "last {minutes:.0f} min{fewer}{unattained}",
    )
    FEWER_HELD = "", ", {replicas} {held:.1f} %"
    NO_RULE_ATTAINS = "", "; no rule would have held {asked:.1f} %"
    FORECAST_SIZES_UNKNOWN = (
        "RequestSizesUnknown",
        "request sizes are not known (fewer than {least} requests finished in {window:.0f} s, and none remembered): "
        "the forecast holds still",
    )
    NOT_SIZED = "MetricsUnavailable", "no variant can be sized"
    FORECAST_AT_MAXIMUM = (
        "AtMaximum",
        "{supply:.4g}/s with the replicas there are or coming; no variant may grow: {why}",
    )
    FORECAST_RISING = "LoadRising", "{supply:.4g}/s with the replicas there are or coming: {moves}"
    FORECAST_ABOVE_CAPACITY = "LoadAboveCapacity", "{supply:.4g}/s with the replicas there are or coming: {moves}"
    FORECAST_STEADY = "SteadyState", "as many as needed"
    WARM_UP = "WarmUpHold", "fewer would do, but the load has not been seen for a whole window of {window:.0f} s"
    IN_FLIGHT = "RequestsInFlight", "nothing arrives, but requests are in flight or may be"
    SHRINK_BLOCKED = "ScaleDownBlocked", "fewer would do, but saturation says shrinking is not safe"
    FORECAST_DELAYED = (
        "ScaleDownDelayed",
        "{moves} would do; waiting for {delay:.0f} s without a break, {left:.0f} s to go",
    )
    FORECAST_DELAYED_LONGER = (
        "ScaleDownDelayed",
        "{moves} would do; waiting for {delay:.0f} s without a break, {left:.0f} s to go (longer than usual: what "
        "was given up lately was soon wanted back)",
    )
    CHEAPER_MIX = "CheaperMix", "{moves} is cheaper; what it replaces goes when it is ready"
    FORECAST_BELOW_HPA_TOLERANCE = (
        "BelowHPATolerance",
        "{moves} would do, but an HPA ignores less than {least} of {replicas} replicas",
    )
    FORECAST_SHRINKING = "CapacitySpare", "{moves} (needed {needed})"
    LOAD = "", "{load:.4g} requests/s{sizes}{basis}"
    NO_REQUESTS = "", "no load{sizes}{basis}"
    OF_SIZE = "", " of {prompt:.0f} + {output:.0f} tokens"
    OF_REMEMBERED_SIZE = "", " of {prompt:.0f} + {output:.0f} tokens, remembered"
    BASIS = "", " ({basis})"
    TAKES = "", "a replica takes {rate:.4g}/s{within}: {binding} binds at {utilisation:.0%} utilisation"
    TAKES_FOR_SHARE = "", "a replica takes {rate:.4g}/s{within} for {share}"
    TAKES_AT_NEAREST_TARGET = (
        "",
        "a replica takes {rate:.4g}/s at the nearest target worth it{within}, which cannot be met",
    )
    TAKES_AT_EASED_TARGET = (
        "",
        "a replica takes {rate:.4g}/s at the nearest target worth it{within}, which only an almost idle one could meet",
    )
    SATURATION_ALONE = "", "{load}: saturation alone decides"
    WITHOUT_SATURATION = "", "without saturation: {why}"
    ARBITRATED = "", "{why} ({saturation})"
    SATURATION_SAYS = "", "saturation: {code}"
    FORECAST_SAYS = "", "{code}: {forecast}"
    VETOED = "", "saturation asks for more: the forecast's scale-down is vetoed"
    NOT_SAFE = "", "scale-down would not be safe: the forecast is blocked"
    SATURATION_MORE = "", "saturation asks for more"
    LARGER_WINS = "", "both ask for more: the larger wins"
    FORECAST_DECIDES = "", "the forecast decides"
    NOTHING_ASKED = "", "no change is asked for"
    OVERRIDDEN = "", "the forecast would shrink; saturation says it is not safe"
    NO_FEASIBLE_ALLOCATION = "OptimizationFailed", "no feasible allocation found: {why}; replicas are kept"
    OPTIMIZED = (
        "Optimized",
        "{replicas} for {load:.2f} requests/min, the whole load of the model: cost {cost:g}, {each:.4g}/s per replica",
    )

    # Alternatives.
    ONE_MORE = "", "one more than needed"
    ALONE = "", "{name} alone"
    OVERLOADED = "", "its replicas would be overloaded"
    ABOVE_TARGET = "", "{latency} would be {expected:.4g} ms, above {target:g} ms"
    WOULD_CARRY_LESS = "", "would carry {supply:.4g}/s of {planned:.4g}/s planned for"
    WOULD_CARRY = "", "would carry {supply:.4g}/s"

    # Metrics of a binding's targets.
    NO_TARGET_READABLE = "TargetInvalid", "no target could be read"
    NO_INSTANCE_GIVES = "MetricsUnavailable", "none of {number} ready instances gives {names}{because}"
    NOTHING_AT_ZERO = "AtZero", "at zero replicas there is nothing to measure{hint}"
    NO_WAKE_QUERY = (
        "",
        "; nothing can wake it: give the binding the annotation modelyard.dev/wake-query, or set minReplicas above 0",
    )
    INSTANCES_COMING = "NoReadyInstance", "no instance is ready yet, {unready} are coming{because}"
    METRICS_PARTIAL = "MetricsPartial", "measured {measured} ready instances{because}"
    METRICS_MEASURED = "MetricsFound", "all metrics of {number} ready instances were measured{because}"
    BECAUSE = "", ": {errors}{more}"
    MORE_ERRORS = "", "; and {number} more"
    BELOW_MINIMUM = "BelowMinimum", "{current} is below the minimum {minimum}"
    ABOVE_MAXIMUM = "AboveMaximum", "{current} is above the maximum {maximum}"
    NOTHING_MEASURED = "", "no metric of the policy could be measured"
    METRICS_INCOMPLETE = (
        "MetricsIncomplete",
        "{proposal}; {names} cannot be measured now, and without it nothing is taken away",
    )
    NONE_READY = (
        "NoReadyInstance",
        "{proposal}; no instance is ready, and none of the {unready:g} on their way is given up",
    )
    BOUNDED = "", "{proposal}, bounded to {replicas} by the {bound} of replicas"
    WITH_SOURCES = "", "{why} ({sources})"
    TOTAL_WITHIN = "", "{metric} {total:g} in all, within {tolerance:.0%} of {target:g} each"
    TOTAL_ASKS = "", "{metric} {total:g} in all at {target:g} each asks for {replicas}"
    MEAN = "", "{metric} {mean:.4g} each over {instances}, target {target:g}{missing}{unready}"
    MEAN_MISSING = "", ", {number} missing"
    MEAN_UNREADY = "", ", {number:g} not ready"
    MEAN_WITHIN = "", "{mean}: within {tolerance:.0%}, keeps {replicas}"
    MEAN_UNCERTAIN = "", "{mean}: not certain enough to move, keeps {replicas}"
    MEAN_WRONG_WAY = "", "{mean}: {desired} would go the wrong way, keeps {replicas}"
    MEAN_ASKS = "", "{mean}: asks for {replicas}"

    # How far a binding follows its metrics now.
    PANIC = "", "panic until {until}"
    PANIC_LIMITED = "RateLimited", "{panic}, at most {percent} % above {base} within {period:g} s"
    PANICKING = "Panicking", "{panic}: no scale-down before that"
    PANIC_STAYS = "", "{panic}: no scale-down"
    STABILIZED_DOWN = "Stabilizing", "the highest recommendation of the last {window:g} s is {highest}{then}"
    STABILIZED_UP = "Stabilizing", "the lowest recommendation of the last {window:g} s is {lowest}"
    POSSIBLE_AFTER = "", "; {replicas} is possible after {time}"
    RATE_LIMITED = (
        "RateLimited",
        "at most the {which} of {instances} or {percent} % {direction} than {base} within {period:g} s{then}",
    )
    CLAMPED = "", "bounds are {minimum} to {maximum}"
    PASSES_LIMITS = "", "pending demand passes all limits"
    DEMAND_WAKES = "WokenByDemand", "pending demand wakes it"
    TOTAL_MOVE = "", "total {before} → {after}{share}"
    OF_WHICH = "", ", of which {replicas} here"
    SHARE = "", "share of the total {total} for {target}"
    DEMAND_UNKNOWN = (
        "WaitingForIdle",
        "keeps the last instance: it is not known whether there is demand (no instance tells of running and waiting "
        "requests, or one could not be read; the annotation modelyard.dev/wake-query can say it instead)",
    )
    STILL_ASKED = "WaitingForIdle", "keeps the last instance: {demand:g} requests are running or waiting"
    STILL_WANTED = "WaitingForIdle", "keeps the last instance: the metrics ask for {replicas}"
    IN_GRACE = "WaitingForIdle", "keeps the last instance until {until}: idle since {since}, grace is {grace:g} s"
    ROLE_RATIO = "RoleRatio", "{before} by itself, {after} to keep {ratio}"
    RATIO_INVALID = "InvalidConfiguration", "annotation {annotation}: {error}"
    OTHER_ROLE_UNKNOWN = "OtherRoleUnknown", "the role of {role} is not decided on: {why}"
    AT_BOUND_MINIMUM = "AtMinimum", "the metrics ask for no more than the minimum"
    AT_BOUND_MAXIMUM = "AtMaximum", "the metrics ask for no less than the maximum"
    ON_TARGET = "OnTarget", "the metrics ask for what there is"
    SHARED = "Shared", "the total goes the other way"
    METRICS_ABOVE = "MetricsAboveTarget", "the metrics ask for more"
    METRICS_BELOW = "MetricsBelowTarget", "the metrics ask for less"
    TARGET_LOST = "TargetInvalid", "{workload} cannot be read: {why}; its replicas are kept"

    # The documented algorithms.
    STEP = (
        "",
        "saturation-only mode: {action} (target: {replicas}): {why}; spare KV {spare_kv:.3f}, spare queue "
        "{spare_queue:.1f} over {counted} of {reporting} replicas",
    )
    STEP_NOTHING_REPORTS = "SteadyState", "no replica reports"
    STEP_HEADING = "InTransition", "in transition: {name} desired {desired} ≠ current {current}"
    STEP_REPORTING = "InTransition", "in transition: {name} reporting {reporting} ≠ current {current}"
    STEP_ALL_PENDING = "InTransition", "capacity is short, but every variant has pending replicas"
    STEP_UP_KV_CACHE = "KvCacheSpareLow", "{name} is the cheapest (cost {cost:g})"
    STEP_UP_QUEUE = "QueueSpareLow", "{name} is the cheapest (cost {cost:g})"
    STEP_UP_BOTH = "KvCacheAndQueueSpareLow", "{name} is the cheapest (cost {cost:g})"
    STEP_DOWN = "CapacitySpare", "{name} is the most expensive (cost {cost:g})"
    STEP_ALL_AT_ONE = "AtMinimum", "scale-down is safe, but every variant has one replica"
    STEP_NONE = "SteadyState", "neither short of capacity nor safe to shrink"
    TOKEN_STEP = (
        "",
        "token analysis: {action} (target: {replicas}): {why}; demand {demand:.0f} tokens, supply {supply:.0f}, "
        "anticipated {anticipated:.0f}",
    )
    TOKENS_NO_CAPACITY = "SteadyState", "required {required:.0f} tokens, no capacity is known"
    TOKENS_REQUIRED = "TokenCapacityLow", "required {required:.0f} tokens"
    TOKENS_SPARE = "CapacitySpare", "spare {spare:.0f} tokens"
    TOKENS_NEITHER = "SteadyState", "neither capacity required nor spare"
    TARGETS_UNREACHABLE = "", "the latency targets cannot be met on this profile"

    # Bounds, accelerators and quotas.
    LOWERED = "AboveMaximum", "lowered from {before} to {after} by {source}"
    RAISED = "BelowMinimum", "raised from {before} to {after} by {source}"
    HELD_DOWN = "AtMaximum", "lowered from {before} to {after} by {source}"
    HELD_UP = "AtMinimum", "raised from {before} to {after} by {source}"
    SHARE_OF_LOAD = (
        "CapacityLimited",
        "{scarcity}: {served:.4g} of {load:.4g} requests/s can be served within the targets{note}",
    )
    OTHER_MIX = "CapacityLimited", "{scarcity}: served by another mix than the cheapest{note}"
    ALLOCATED = "", "{share}: {before} → {after}"
    ENOUGH_ACCELERATORS = "CapacitySufficient", "there are accelerators for all replicas asked for"
    LIMITER_DISABLED = "LimiterDisabled", "the GPU limiter is not enabled"
    NO_GROWTH = "", "no scale-up"
    NOT_LIMITED = "", "GPU limiter skipped, targets are not limited: nodes could not be listed ({problem})"
    GRANTED = "", "{grant}"
    LIMITED_BY_QUOTA = "", "limited to {replicas} by {quota} ({why})"
    LIMITED_BY_GPUS = "", "limited to {replicas} by GPUs ({grant})"


class OwnReason(NamedTuple):
    """An outcome that a strategy or stage outside this package brings with it: code and text as a ``Reason`` has."""

    code: str
    text: str


class Explanation:
    """A reason with the labelled values that belong to it. ``str`` renders the text, once."""

    __slots__ = ("_text", "facts", "reason")

    def __init__(self, reason: Reason | OwnReason, **facts: object) -> None:
        self.reason = reason
        self.facts: Mapping[str, object] = facts
        self._text: str | None = None

    @property
    def code(self) -> str:
        return self.reason.code

    def __str__(self) -> str:
        if self._text is None:
            self._text = self.reason.text.format(**self.facts)
        return self._text


class Parts(tuple[object, ...]):
    """Several explanations that are one message; empty ones are left out."""

    __slots__ = ()

    def __str__(self) -> str:
        return str(self[0]) if len(self) == 1 else "; ".join(filter(None, map(str, self)))


class JoinedTexts(tuple[object, ...]):
    """Items that a text lists."""

    __slots__ = ()

    def __str__(self) -> str:
        return ", ".join(map(str, self))


class VariantMove(NamedTuple):
    """Replicas of a variant before and after."""

    name: str
    before: int | None
    after: int | None

    def __str__(self) -> str:
        return f"{self.name} {self.before} → {self.after}"


class Count(NamedTuple):
    """A number of things, with their name."""

    number: float
    one: str
    several: str = ""

    def __str__(self) -> str:
        return counted(*self)


class ConditionValue(NamedTuple):
    """Status and reason of a condition, and its message, which ``str`` renders."""

    status: str
    reason: str
    message: object

    @classmethod
    def of(cls, status: str, explanation: Explanation) -> ConditionValue:
        return cls(status, explanation.code, explanation)
