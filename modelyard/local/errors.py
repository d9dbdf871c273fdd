"""What the local cluster raises."""

from __future__ import annotations


class LocalClusterError(RuntimeError):
    """Something about the local cluster failed; the message names the part, what was tried and what to do next."""


class BinaryNotFound(LocalClusterError):
    """A program the cluster needs is neither on this machine nor obtainable."""
