"""The components as command lines and health checks; used by the supervisor."""
