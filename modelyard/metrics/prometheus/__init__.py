"""Query Prometheus: signals, loads and performance of engines, and the expressions of policies."""

from modelyard.metrics.prometheus.client import Prometheus, PrometheusError, PrometheusSettings, Sample, Series
from modelyard.metrics.prometheus.expressions import MOST, Expressions
from modelyard.metrics.prometheus.loads import LoadHistory, Pair
from modelyard.metrics.prometheus.routed import read_routed
from modelyard.metrics.prometheus.served import read_served
from modelyard.metrics.prometheus.signals import LastSeen, gateway_queue, read_signals, together
