"""From a model's URI and a target to a service of the right size: what is asked, made, compared and chosen. Pure."""

from modelyard.onboarding.request import OnboardInput, OnboardRequest
