"""The one place that talks to Prometheus: fleet queries in, replica signals out."""
