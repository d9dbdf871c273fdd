"""Scrape the metrics pages of pods directly, each with limits of its own."""

from modelyard.metrics.endpoints.bounded_connection import SLICE, BoundedConnection, BoundedConnector, read_body
from modelyard.metrics.endpoints.engine_api import model_names, request_models, request_page, request_status
from modelyard.metrics.endpoints.scrape import MAX_BODY, Scraper
