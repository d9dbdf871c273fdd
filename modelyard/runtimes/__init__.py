"""Which runtime serves a model, and why each other one does not: ``select``, with no I/O."""

from modelyard.runtimes.accelerators import AcceleratorClass, Constraints
from modelyard.runtimes.admission import warnings
from modelyard.runtimes.images import DOCKER_HUB, ImageReference, images_of, parse_image
from modelyard.runtimes.matching import label
from modelyard.runtimes.protocols import health_paths
from modelyard.runtimes.selection import (
    NO_RUNTIME,
    Ranking,
    RejectionReason,
    RuntimeVerdict,
    named_keys,
    not_found,
    select,
)
from modelyard.runtimes.values import ModelView, Runtime, Wishes, model_view, parse_model, parse_runtime, parse_wishes
