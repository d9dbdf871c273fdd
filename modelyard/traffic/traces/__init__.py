"""Recorded traffic: traces of requests, and latency percentiles. Pure."""

from modelyard.traffic.traces.latency import SLACK, SLO, Ending, Latency, Percentiles, Results, percentile, percentiles
from modelyard.traffic.traces.trace import Trace, TraceInputError, from_rates, parse_columns, read_trace
