"""The lifecycle of a model: which nodes receive its files, the Jobs that bring them, and its status. Pure."""

from modelyard.models.delivery import names, world
from modelyard.models.delivery.jobs import CONFINED, CONFINED_POD, NotAllowed, target
from modelyard.models.delivery.legs import PERSON, STARTING, Leg, NodeStage
from modelyard.models.delivery.lifecycle import ModelDelivery
from modelyard.models.delivery.model_size import read_size, size_of
from modelyard.models.delivery.names import BASE_MODELS, CLUSTER_BASE_MODELS, FINE_TUNED_WEIGHTS, KINDS, base_models
from modelyard.models.delivery.placement import excess
from modelyard.models.delivery.running import JobEnd, container_words, job_end
from modelyard.models.delivery.story import MOST_WORDS, RESOLVED
from modelyard.models.delivery.world import (
    NUDGE,
    VERIFY,
    ModelClaim,
    ModelNode,
    StoredModel,
    TransferProgress,
    claim,
    model,
    node,
)
