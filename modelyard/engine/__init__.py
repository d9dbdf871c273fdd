"""A simulated LLM inference engine: the OpenAI API and the metrics of vLLM (or SGLang) without a GPU.

``core`` is the pure engine in virtual seconds. This file imports nothing, so that starting a process stays cheap.
"""
