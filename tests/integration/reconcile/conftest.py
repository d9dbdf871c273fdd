"""An API server that these tests may kill."""

from own_api_server import api_server, cluster, place, proxied, proxy

__all__ = ["api_server", "cluster", "place", "proxied", "proxy"]
