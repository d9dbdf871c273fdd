"""The components as command lines and health checks."""
