"""A Model (registry.volcano.sh) as the objects that serve it: pods, routes, scaling policies. Pure.

``render`` puts together what the others say: ``config`` (an engine's options), ``files`` (where the model is),
``engines`` (how each engine is run), ``pods``, ``workloads``, ``traffic`` and ``scaling`` (the children). Of what is
there already, ``changes`` says what to write, ``adapters`` which LoRA adapters to load, ``recovery`` which pods to
replace, ``status`` what to tell.
"""
