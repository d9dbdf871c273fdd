"""The router process: requests in, attempts at pods, limits, metrics."""

from modelyard.router.process.configured import ConfigurationFile
from modelyard.router.process.follow import look
from modelyard.router.process.gauges import EnginePoller
from modelyard.router.process.service import RouterProcess, serve
from modelyard.router.process.workers import supervise
