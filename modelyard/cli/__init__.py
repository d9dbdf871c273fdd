"""The modelyard command."""
