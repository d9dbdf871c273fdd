"""A fleet from files instead of a cluster."""
