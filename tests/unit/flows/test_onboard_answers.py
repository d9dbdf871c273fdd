"""What the check of an onboarded service believes of what answers there, asked over a real connection."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from modelyard.metrics.endpoints.engine_api import MODELS_BYTES
from modelyard.onboarding.execution.service_check import served_models
from modelyard.traffic.clients.replay import RequestFailed, open_session, send

MODELS = b'{"data": [{"id": "llama"}]}'


@contextmanager
def engine(status: int, body: bytes, location: str = "") -> Iterator[tuple[str, list[str]]]:
    """A URL of which everything is answered so, and what it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            if location:
                self.send_header("Location", location)
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()


async def test_the_models_that_answer_are_told() -> None:
    with engine(200, MODELS) as (url, _):
        assert await served_models(url) == (["llama"], "")


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (503, MODELS, "HTTP 503"),
        (200, b"[" * 20_000, "Error"),
        (200, b'{"data": [], "more": "' + b"x" * 2 * MODELS_BYTES + b'"}', "is larger than"),
    ],
)
async def test_what_is_no_list_of_models_is_told(status: int, body: bytes, why: str) -> None:
    with engine(status, body) as (url, _):
        found, told = await served_models(url)
    assert found == []
    assert why in told


@pytest.mark.parametrize("status", [302, 307])
async def test_nobody_is_sent_elsewhere(status: int) -> None:
    """The worker reaches what no tenant does."""
    with engine(200, MODELS) as (inside, asked), engine(status, b"", f"{inside}/secret") as (url, _):
        assert (await served_models(url))[0] == []
        async with open_session() as session:
            with pytest.raises(RequestFailed, match=f"HTTP {status}"):
                await send(session, url, b"{}")
    assert asked == []
