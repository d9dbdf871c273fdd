"""A simulated LLM inference engine: the OpenAI API and the metrics of vLLM (or SGLang) without a GPU.

``core`` is the pure engine in virtual seconds, used by the server here and by simulations of whole fleets;
``server`` runs it as an HTTP process (``python -m modelyard.local.engine``), which the local cluster's node agent
starts once per pod. This file imports nothing, so that starting a process stays cheap.
"""
