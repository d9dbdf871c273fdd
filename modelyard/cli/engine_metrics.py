"""``modelyard node metrics``: next to an engine, shows its metrics page at a port of its own, with unified names.

It is a container of the pods of Models that set ``RUNTIME_PORT`` or ``RUNTIME_URL``, which configure the sidecar that
Kthena runs for this. The engine is asked when somebody asks, and nothing but its metrics can be asked for.
"""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Annotated

import typer

from modelyard.cli.options import check_url

TIMEOUT = 5.0
"""Seconds that the engine may take for its page."""
LARGEST = 32 << 20
"""Bytes of the engine's page."""
AT_ONCE = 8
"""Pages in memory at once."""


def metrics(
    engine: Annotated[str, typer.Option(callback=check_url, help="URL of the engine.")],
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "0.0.0.0",
    path: Annotated[str, typer.Option(help="Path of the engine's metrics.")] = "/metrics",
    names: Annotated[str, typer.Option(help="Engine whose metrics get unified names: vLLM or SGLang.")] = "",
) -> None:
    """Show an engine's metrics at another port, also under Kthena's unified names, until ended."""
    with MetricsServer((host, port), f"{engine.rstrip('/')}/{path.lstrip('/')}", names) as server:
        server.serve_forever()


class MetricsServer(ThreadingHTTPServer):
    """Serves ``/metrics``, which is the page at ``source``, and ``/health``."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], source: str, names: str) -> None:
        import urllib3

        super().__init__(address, _Handler)
        self.source, self.names = source, names
        self.places = threading.BoundedSemaphore(AT_ONCE)
        self.http = urllib3.PoolManager(retries=False, timeout=TIMEOUT, maxsize=AT_ONCE)


class _Handler(BaseHTTPRequestHandler):
    server: MetricsServer
    timeout = 2 * TIMEOUT

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/health":
            self._answer(200, b'{"status":"healthy"}', "application/json")
        elif path != "/metrics":
            self._answer(404, b"not found: ask for /metrics or /health\n")
        elif not self.server.places.acquire(blocking=False):
            self._answer(503, b"too many requests at once; try again\n")
        else:
            try:
                self._answer(*self._page())
            finally:
                self.server.places.release()

    def _page(self) -> tuple[int, bytes]:
        import urllib3

        from modelyard.workloads.kthena.unified import with_unified

        try:
            answer = self.server.http.request("GET", self.server.source, preload_content=False)
            try:
                page = answer.read(LARGEST + 1)
            finally:
                answer.release_conn()
        except (OSError, urllib3.exceptions.HTTPError) as error:
            return 502, f"the engine's metrics at {self.server.source} cannot be read: {error}\n".encode()
        if answer.status != 200:
            return 502, f"the engine answers {answer.status} at {self.server.source}\n".encode()
        if len(page) > LARGEST:
            return 502, f"the engine's metrics are more than {LARGEST} bytes\n".encode()
        return 200, with_unified(page.decode("utf-8", "replace"), self.server.names).encode()

    def _answer(self, status: int, body: bytes, media: str = "text/plain; version=0.0.4; charset=utf-8") -> None:
        self.send_response(status)
        self.send_header("Content-Type", media)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Keep scrapes out of the log."""
