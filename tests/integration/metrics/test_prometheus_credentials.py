"""Credentials for Prometheus: which are sent, what is refused, and that nothing that is told shows them."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from prometheus_server import free_port

from modelyard.autoscaling.live.controller import Controller
from modelyard.autoscaling.live.settings import ControllerSettings
from modelyard.metrics.prometheus.client import Prometheus, PrometheusError, PrometheusSettings
from modelyard.replay.backtest.scenario import read_scenario
from modelyard.replay.request import ReplayRequest

pytestmark = pytest.mark.integration

MANIFESTS = Path(__file__).resolve().parents[3] / "config/samples/plan/manifests.yaml"


class Listener:
    """A Prometheus that answers with one number and notes who asked."""

    def __init__(self) -> None:
        self.authorizations: list[str | None] = []
        self.status = 200
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.authorizations.append(self.headers.get("Authorization"))
                self.send_response(outer.status)
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


another = listener
"""One more of them."""


async def ask(**settings: Any) -> None:
    async with Prometheus(PrometheusSettings(allow_plain_token=True, timeout=30, attempts=1, **settings)) as prometheus:
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
        ({"base_url": "prometheus:9090"}, "'prometheus:9090' has no scheme; add http://"),
        ({"base_url": "file:///etc/passwd"}, "begins with file://; write http:// or https://"),
        ({"base_url": "http://someone:s3c/ret@p:9090"}, "'http://p:9090' is no http or https address"),
        ({"base_url": "someone:s3cret@p:9090"}, "'p:9090' is no http or https address"),
        ({"base_url": "http://someone:s3c[ret@p:9090"}, "'http://p:9090' is no http or https address"),
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


def said_by(authorization: str) -> str:
    """What the header says, in clear."""
    kind, _, text = authorization.partition(" ")
    return base64.b64decode(text).decode() if kind == "Basic" else text


NO_CLUSTER = {
    "clusters": [{"name": "none", "cluster": {"server": "http://127.0.0.1:9"}}],
    "users": [{"name": "none", "user": {}}],
    "contexts": [{"name": "none", "context": {"cluster": "none", "user": "none"}}],
    "current-context": "none",
}


async def loop_asks(url: str | None) -> None:
    async with Controller(ControllerSettings(prometheus_url=url)) as controller:
        if isinstance(controller.prometheus, PrometheusError):
            raise controller.prometheus
        await controller.prometheus.query("1", "a test")


async def replay_asks(url: str | None) -> None:
    past = {"manifests": [str(MANIFESTS)], "namespace": "chat", "model": "m", "begin": "1h", "end": "30m"}
    with pytest.raises(PrometheusError, match="not a Prometheus vector"):
        await read_scenario(ReplayRequest.model_validate({**past, "prometheus_url": url or ""}))


@pytest.mark.parametrize("asks", [loop_asks, replay_asks])
@pytest.mark.parametrize("secret", ["token", "file", "password"])
async def test_whoever_starts_a_run_cannot_have_the_credentials_sent_elsewhere(
    listener: Listener,
    another: Listener,
    asks: Callable[[str | None], Awaitable[None]],
    secret: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, text in (("kubeconfig", json.dumps(NO_CLUSTER)), ("token", "s3cret")):
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    user = "someone:s3cret@" if secret == "password" else ""
    monkeypatch.setenv("PROMETHEUS_BASE_URL", f"http://{user}{listener.place}/")
    monkeypatch.setenv("PROMETHEUS_ALLOW_PLAIN_TOKEN", "true")
    if secret != "password":
        name, value = ("BEARER_TOKEN", "s3cret") if secret == "token" else ("TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.setenv(f"PROMETHEUS_{name}", value)
    await asks(f"http://{another.place}")
    await asks(f"http://{listener.place}@{another.place}")
    await asks(f"http://{another.place}/{listener.place}")
    assert not {value for value in another.authorizations if value and "s3cret" in said_by(value)}
    assert listener.authorizations == []
    await asks(None)
    await asks(f"http://{listener.place}")
    assert all(value and "s3cret" in said_by(value) for value in listener.authorizations)
    assert len(another.authorizations) >= 3
    assert len(listener.authorizations) >= 2


async def test_who_is_refused_learns_where_credentials_go(listener: Listener) -> None:
    listener.status = 401
    with pytest.raises(PrometheusError, match=r"401.*sent to PROMETHEUS_BASE_URL only"):
        await ask(base_url=f"http://{listener.place}")
