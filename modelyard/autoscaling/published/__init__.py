"""The documented modes of the reference controllers, off the live path."""
