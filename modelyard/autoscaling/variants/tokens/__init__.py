"""The token analyzer: load and capacity of a model in tokens of KV cache instead of percentages."""

from modelyard.autoscaling.variants.tokens.analysis import Queue, analyse_tokens
from modelyard.autoscaling.variants.tokens.capacity import (
    Replica,
    ReplicaCapacity,
    derived_limit,
    middle,
    output_bucket,
    remember,
    replica_capacity,
    tokens_in_use,
)
from modelyard.autoscaling.variants.tokens.engine_arguments import EngineArguments
from modelyard.autoscaling.variants.tokens.knowledge import arguments_of, memory_limit
