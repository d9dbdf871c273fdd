"""Cluster access of the onboarding flow: create its objects, and check the service under load."""

from modelyard.onboarding.execution.service_check import check_service, simulate_load
from modelyard.onboarding.execution.start import OnboardRefused, retry_failed, take_over
