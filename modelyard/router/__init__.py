"""The router: requests for a model name reach the best pod. What it decides is in ``modelyard.routing``."""

from modelyard.router.settings import RouterSettings
