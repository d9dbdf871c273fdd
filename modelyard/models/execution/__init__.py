"""Cluster access of the delivery flow: requests for a delivery, and the progress of its transfers."""

from modelyard.models.execution.requests import NoSuchModel, read_state, request_model, request_retry
from modelyard.models.execution.transfers import node_outcome, read_progress, received
