"""Loopback addresses for Nodes and pods.

Linux answers on all of 127.0.0.0/8, so every pod can have an address of its own that real clients reach, and many pods
can listen on one port. The price: Kubernetes accepts no loopback address in Endpoints, so Services have none here;
clients find pods by their labels.
"""

from __future__ import annotations

from collections.abc import Iterator

from modelyard.local.paths import LocalClusterError

_PODS_FIRST = 1
_PODS_LAST = 254


class Addresses:
    """Pod addresses of one prefix (`127.20` gives 127.20.1.1 to 127.20.254.254). A freed one is reused last."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._taken: set[str] = set()
        self._next = self._cycle()

    def node(self, index: int) -> str:
        """Address of the Node with this index, counted from 0."""
        if not 0 <= index < 254:
            raise LocalClusterError(f"node number {index}: a local cluster has at most 254 nodes")
        return f"{self._prefix}.0.{index + 1}"

    def take(self) -> str:
        """A free pod address.

        Raises:
            LocalClusterError: all 64,516 are in use.
        """
        for _ in range(254 * 254):
            address = next(self._next)
            if address not in self._taken:
                self._taken.add(address)
                return address
        raise LocalClusterError(f"all pod addresses in {self._prefix}.0.0/16 are in use; delete pods")

    def claim(self, address: str) -> bool:
        """Take this very address; False when it is another's or not of this prefix."""
        if address in self._taken or not address.startswith(f"{self._prefix}."):
            return False
        self._taken.add(address)
        return True

    def free(self, address: str) -> None:
        """Give an address back."""
        self._taken.discard(address)

    def _cycle(self) -> Iterator[str]:
        while True:
            for third in range(_PODS_FIRST, _PODS_LAST + 1):
                for fourth in range(_PODS_FIRST, _PODS_LAST + 1):
                    yield f"{self._prefix}.{third}.{fourth}"
