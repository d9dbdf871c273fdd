"""What a variant and a binding must remember from one tick to the next, kept with the resource."""

from modelyard.autoscaling.memory.bindings import POLICY_STATE, BindingMemory, History, Mark
from modelyard.autoscaling.memory.variants import AUTOSCALING_STATE, MOST_SCALINGS, SLOMemory, VariantMemory
