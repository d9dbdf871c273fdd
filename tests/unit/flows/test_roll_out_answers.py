"""What a run says at its end: that a service answers only where an engine did, asked over a real connection."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from modelyard.hosts import HostsFile
from modelyard.objects import Key
from modelyard.reconcile.plans.object_result import ObjectResult, ResultState, failures
from modelyard.runtimes.protocols import health_paths
from modelyard.workloads.roll_out.roll_out_report import EngineAnswer, service_result
from tasks.roll_out import ask

NAME = "chat.shop.svc.cluster.local"


@contextmanager
def serving(*answers: dict[str, int]) -> Iterator[int]:
    """A port that answers by path, each time that the last of the paths was asked for with the next; else by 404."""
    left = list(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status = left[0].get(self.path, 404)
            if len(left) > 1 and self.path == list(left[0])[-1]:
                left.pop(0)
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def hosts(tmp_path: Path) -> HostsFile:
    path = tmp_path / "hosts"
    path.write_text(f"127.0.0.1 {NAME}\n")
    return HostsFile(path)


@pytest.mark.parametrize(
    ("answers", "attempts", "status"),
    [
        ([{"/v1/models": 200}], 1, 200),
        ([{"/health": 200}], 1, 200),
        ([{"/v1/models": 503}], 1, 503),
        ([{"/v1/models": 503}, {"/v1/models": 200}], 5, 200),
        ([{}], 1, 404),
        ([{"/v1/models": 401, "/health": 200}], 1, 401),
    ],
)
async def test_a_service_is_asked_by_its_name(
    hosts: HostsFile, answers: list[dict[str, int]], attempts: int, status: int
) -> None:
    with serving(*answers) as port:
        address = f"http://{NAME}:{port}"
        answer = await ask(address, hosts, attempts)
    assert (answer.status, answer.address) == (status, address)


@pytest.mark.parametrize(
    ("protocols", "answers", "status"),
    [
        ((), {"/v1/models": 200}, 200),
        (("openAI", "openInference-v2"), {"/v1/models": 200}, 200),
        (("openInference-v2",), {"/v2/health/ready": 200}, 200),
        (("openInference-v2", "cohere"), {"/health": 200}, 200),
        (("openInference-v2",), {"/v1/models": 200}, 404),
        (("openInference-v2",), {"/v2/health/ready": 503, "/v1/models": 200}, 503),
    ],
)
async def test_a_service_is_asked_by_the_protocol_of_its_runtime(
    hosts: HostsFile, protocols: tuple[str, ...], answers: dict[str, int], status: int
) -> None:
    with serving(answers) as port:
        answer = await ask(f"http://{NAME}:{port}", hosts, 1, health_paths(protocols))
    assert answer.status == status


def test_an_engine_without_a_known_path_is_not_asked() -> None:
    assert health_paths(["cohere", "openInference-v1"]) == ()


async def test_without_an_address_nothing_is_heard() -> None:
    answer = await ask(f"http://{NAME}.invalid:80", None, 1)
    assert (answer.status, answer.well, answer.wrong) == (0, False, False)
    assert answer.words == "its pods are ready; not asked from here: ClientConnectorDNSError"


URL = f"http://{NAME}:8080"
READY = {"type": "Ready", "status": "True", "reason": "PodsReady"}
UNREADY = {"type": "Ready", "status": "False", "reason": "Busy", "message": "no GPU"}


@pytest.mark.parametrize(
    ("answer", "failed", "text"),
    [
        (EngineAnswer(200, "200 OK", URL), False, f"shop/chat answers at {URL}"),
        (EngineAnswer(), False, "shop/chat: its pods are ready; not asked from here"),
        (
            EngineAnswer(401, "401 Unauthorized", URL),
            False,
            f"shop/chat: its pods are ready; {URL} says 401 Unauthorized",
        ),
        (EngineAnswer(503, "503 Busy", URL), True, f"shop/chat: its pods are ready, but {URL} says 503 Busy"),
        (EngineAnswer(404, "404 Not Found", URL), True, f"shop/chat: its pods are ready, but {URL} says 404 Not Found"),
    ],
)
def test_that_it_answers_is_said_only_where_it_did(answer: EngineAnswer, failed: bool, text: str) -> None:
    obj = {"metadata": {"generation": 2}, "status": {"observedGeneration": 2, "conditions": [READY]}}
    result = service_result(Key("shop", "chat"), obj, None, {"Ready": "True"}, answer)
    assert result == ObjectResult(ResultState.PENDING if failed else ResultState.DONE, text)
    assert failures([result], waits=True) == ([text] if failed else [])
    assert failures([result], waits=False) == []


@pytest.mark.parametrize(
    ("obj", "text"),
    [
        (None, "there is no such service"),
        ({"metadata": {"generation": 2}, "status": {"observedGeneration": 1, "conditions": [READY]}}, ""),
        ({"metadata": {"generation": 1}, "status": {"observedGeneration": 1, "conditions": [UNREADY]}}, "Busy: no GPU"),
    ],
)
def test_a_service_is_ready_only_in_its_newest_generation(obj: dict[str, Any] | None, text: str) -> None:
    result = service_result(Key("shop", "chat"), obj, None, {"Ready": "True"}, EngineAnswer())
    assert result.state is (ResultState.GONE if obj is None else ResultState.PENDING)
    assert result.text == "shop/chat is not ready" + (f": {text}" if text else "")
