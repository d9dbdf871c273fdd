"""Rich serving runtimes: services on them, and the models that they are chosen for."""

from __future__ import annotations

from typing import Any

from base_model_scenarios import DIFFUSION, verdicts
from field_mutations import InvalidObject, Scenario
from pod_parts import POD, SHARED, by_keda, container, group, single
from service_scenarios import ENTRY, GATEWAY, LIMITS, MODEL, PARTS, SERVERLESS, looking, world
from service_world import FORMAT

from modelyard.resources import ClusterServingRuntime, Resource, ResourceInvalid, ServingRuntime
from modelyard.runtimes import Wishes, parse_model, parse_runtime, select
from modelyard.workloads.settings import CONFIG_MAP

Object = dict[str, Any]
