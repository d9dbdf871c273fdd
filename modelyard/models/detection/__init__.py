"""What a model is, told from its files: ``detect`` reads a folder, ``Facts`` travel, ``fill`` and ``fit`` use them."""

from __future__ import annotations

from pathlib import Path

from modelyard.models.detection.capabilities import CAPABILITIES as CAPABILITIES, current as current
from modelyard.models.detection.facts import MAX_JSON as MAX_JSON, Facts as Facts, Pipeline as Pipeline, fill as fill
from modelyard.models.detection.files import read
from modelyard.models.detection.interpret import interpret
from modelyard.models.detection.memory import (
    CacheCost as CacheCost,
    MemoryFit as MemoryFit,
    cache_cost as cache_cost,
    fit as fit,
)
from modelyard.models.detection.quantization import is_asked_for as is_asked_for, weight_bits as weight_bits
from modelyard.models.detection.sizes import parse_size as parse_size, size_text as size_text

SKIP_ANNOTATIONS = ("ome.oracle.com/skip-config-parsing", "ome.io/skip-config-parsing")
"""Annotations of a model that, where they say ``true`` in any case, mean that its files are not looked at."""


def detect(folder: Path) -> Facts:
    """What the files in ``folder`` say of the model; what cannot be told is unset, and ``Facts.problems`` says why.

    Never raises for what files contain or lack. Links are followed as far as they lead to below the folder.
    """
    return interpret(read(folder))
