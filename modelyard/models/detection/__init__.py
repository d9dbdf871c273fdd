"""What a model is, told from its files: ``detect`` reads a folder, ``Facts`` travel, ``fill`` and ``fit`` use them."""

from __future__ import annotations

from pathlib import Path

from modelyard.models.detection.capabilities import CAPABILITIES, current
from modelyard.models.detection.facts import MAX_JSON, Facts, Pipeline, fill
from modelyard.models.detection.files import read
from modelyard.models.detection.interpret import interpret
from modelyard.models.detection.memory import CacheCost, MemoryFit, cache_cost, fit
from modelyard.models.detection.quantization import is_asked_for, weight_bits
from modelyard.models.detection.sizes import parse_size, size_text

SKIP_ANNOTATIONS = ("ome.oracle.com/skip-config-parsing", "ome.io/skip-config-parsing")
"""Annotations of a model that, where they say ``true`` in any case, mean that its files are not looked at."""


def detect(folder: Path) -> Facts:
    """What the files in ``folder`` say of the model; what cannot be told is unset, and ``Facts.problems`` says why.

    Never raises for what files contain or lack. Links are followed as far as they lead to below the folder.
    """
    return interpret(read(folder))
