"""Deployment modes: how the pods of a service or of one of its components are made."""

from __future__ import annotations

from typing import Final

MODE: Final = "ome.io/deploymentMode"
"""Annotation of a service, a component or a runtime."""
RAW, MULTI_NODE, RAY, SERVERLESS, SPLIT, VIRTUAL = (
    *("RawDeployment", "MultiNode", "MultiNodeRayVLLM", "Serverless"),
    *("PDDisaggregated", "VirtualDeployment"),
)
MODES: Final = (RAW, MULTI_NODE, RAY, SERVERLESS, SPLIT, VIRTUAL)
OF_RUNTIMES: Final = (RAW, MULTI_NODE, SPLIT)
"""Those that a runtime is made for."""
