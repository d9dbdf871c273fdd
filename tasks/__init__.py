"""Modelyard's Prefect tasks: one outside call each, batched. No decisions."""
