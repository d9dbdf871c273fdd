"""Credentials for Prometheus: which are sent, what is refused, and that nothing that is told shows them."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from prometheus_server import free_port

from modelyard.metrics.client import Prometheus, PrometheusError, PrometheusSettings

pytestmark = pytest.mark.integration


class Listener:
    """A Prometheus that answers with one number and notes who asked."""

    def __init__(self) -> None:
        self.authorizations: list[str | None] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.authorizations.append(self.headers.get("Authorization"))
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b'{"data": {"result": [0, "1"]}}')

            def log_message(self, *_: Any) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.server.server_port}"


@pytest.fixture
def listener() -> Iterator[Listener]:
    listener = Listener()
    yield listener
    listener.server.shutdown()
    listener.server.server_close()


async def ask(**settings: Any) -> None:
    async with Prometheus(PrometheusSettings(allow_plain_token=True, timeout=2, attempts=1, **settings)) as prometheus:
        await prometheus.query("1", "a test")


async def test_the_token_itself_comes_before_the_file(listener: Listener, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("of-the-file\n")
    url = f"http://{listener.place}"
    await ask(base_url=url, token_path=file)
    await ask(base_url=url, token_path=file, bearer_token="Bearer inline")
    await ask(base_url=url)
    assert listener.authorizations == ["Bearer of-the-file", "Bearer inline", None]


async def test_a_password_in_the_address_is_sent_and_never_told(listener: Listener) -> None:
    await ask(base_url=f"http://someone:s3cr%40t@{listener.place}")
    assert listener.authorizations == [f"Basic {base64.b64encode(b'someone:s3cr@t').decode()}"]
    settings = {"base_url": f"http://someone:s3cr%40t@127.0.0.1:{free_port()}"}
    with pytest.raises(PrometheusError) as failed:
        await ask(**settings)
    told = f"{failed.value} {PrometheusSettings(**settings)!r}"
    assert "127.0.0.1" in told
    assert not any(secret in told for secret in ("someone", "s3cr"))


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"base_url": ""}, "no Prometheus address"),
        ({"base_url": "prometheus:9090"}, "no http or https address"),
        ({"base_url": "file:///etc/passwd"}, "no http or https address"),
        ({"base_url": "http://p:9090", "bearer_token": "t"}, "PROMETHEUS_ALLOW_PLAIN_TOKEN"),
        ({"base_url": "http://p:9090", "token_path": "/dev/null"}, "PROMETHEUS_ALLOW_PLAIN_TOKEN"),
        ({"base_url": "http://a:b@p:9090"}, "PROMETHEUS_ALLOW_PLAIN_TOKEN"),
        ({"base_url": "https://p", "ca_cert_path": "/no/such"}, "PROMETHEUS_CA_CERT_PATH /no/such: there is no such"),
        ({"base_url": "https://p", "client_cert_path": "/no/such"}, "PROMETHEUS_CLIENT_CERT_PATH"),
    ],
)
def test_what_could_not_work_is_refused_at_once(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(PrometheusError, match=why):
        Prometheus(PrometheusSettings(**settings))


async def test_what_is_no_certificate_is_an_error_of_the_query(tmp_path: Path) -> None:
    (tmp_path / "ca").write_text("nothing")
    with pytest.raises(PrometheusError, match="query for a test failed"):
        await ask(base_url="https://127.0.0.1:1", ca_cert_path=tmp_path / "ca")
