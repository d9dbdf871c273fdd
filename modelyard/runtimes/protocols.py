"""Protocols of endpoints, as runtimes list them and services ask for them. Pure.

Source: InferenceServiceProtocol of ome.io/v1beta1. The paths of ``openInference-v2`` are those of the Open Inference
Protocol.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final

from modelyard.metrics.vocabulary import HEALTH_PATH, MODELS_PATH
from modelyard.objects import cut, printable

OPEN_AI, COHERE, OPEN_INFERENCE_1, OPEN_INFERENCE_2 = "openAI", "cohere", "openInference-v1", "openInference-v2"
PROTOCOLS: Final = (OPEN_AI, COHERE, OPEN_INFERENCE_1, OPEN_INFERENCE_2)
_NAMES: Final = {name.lower(): name for name in PROTOCOLS} | {"v1": OPEN_INFERENCE_1, "v2": OPEN_INFERENCE_2}
_OPEN_AI_PATHS: Final = (MODELS_PATH, HEALTH_PATH)
_OPEN_INFERENCE_2_PATHS: Final = ("/v2/health/ready", HEALTH_PATH)


def protocol_name(text: str) -> str:
    """Return the published name of a protocol; a predictor may call ``openInference-v2`` just ``v2``."""
    return _NAMES.get(text.lower(), text)


def unknown_protocols(protocols: Sequence[str]) -> Iterator[str]:
    """Tell of protocols that a runtime lists and the reference does not have."""
    unknown = [cut(printable(name), 40) for name in protocols if protocol_name(name) not in PROTOCOLS]
    if unknown:
        yield f"spec.protocolVersions: {', '.join(unknown[:10])}: no known protocol; write {', '.join(PROTOCOLS)}"


def health_paths(protocols: Collection[str]) -> tuple[str, ...]:
    """Return an engine's health paths in the order to ask in, if known. Without protocols it speaks ``openAI``."""
    if not protocols or OPEN_AI in protocols:
        return _OPEN_AI_PATHS
    return _OPEN_INFERENCE_2_PATHS if OPEN_INFERENCE_2 in protocols else ()
