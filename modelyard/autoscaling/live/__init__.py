"""The loop without Prefect: collect, decide, actuate, report."""

from modelyard.autoscaling.live.controller import Controller
from modelyard.autoscaling.live.controller_gauges import LATENCIES
from modelyard.autoscaling.live.exporter import serve
from modelyard.autoscaling.live.scalers import list_scalers, unread_scalers
from modelyard.autoscaling.live.settings import ControllerSettings
