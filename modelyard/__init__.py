"""Modelyard's domain: resources, decisions, and the places that talk to the outside. Knows nothing of Prefect."""

__version__ = "0.1.0"
