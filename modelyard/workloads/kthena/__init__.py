"""A Model (registry.volcano.sh) as the objects that serve it: pods, routes, scaling policies. Pure.

``render`` puts together what the others say: ``config`` (an engine's options), ``files`` (where the model is),
``engines`` (how each engine is run), ``pods``, ``workloads``, ``traffic`` and ``scaling`` (the children). Of what is
there already, ``adapters`` says which LoRA adapters to load, ``status`` what to tell. ``lifecycle`` is what a Model has
in place of the parts of an InferenceService.
"""

from modelyard.workloads.kthena import adapters
from modelyard.workloads.kthena.lifecycle import ModelRollOut
from modelyard.workloads.kthena.unified import with_unified
