"""A simulated LLM inference engine: the OpenAI API and the metrics of vLLM (or SGLang) without a GPU.

``core`` is the pure engine in virtual seconds. This file imports nothing, so that starting a process stays cheap.
"""

from modelyard.engine.config import PROFILES, EngineConfig, profiled
from modelyard.engine.core import EngineCore, Rejected
from modelyard.engine.metrics import buckets, readers, samples
from modelyard.engine.request import Event, EventKind, Request
from modelyard.engine.stats import EngineStats, Histogram
