"""Signals in, decisions out. Pure: no clock, no network, no Kubernetes client."""
