"""``modelyard node metrics`` in front of an engine's page on a socket, and the unified names that it adds."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer

import pytest
import urllib3
from aiohttp.test_utils import TestServer
from hypothesis import given, strategies as st
from prometheus_client.parser import text_string_to_metric_families as families

from modelyard.cli.engine_metrics import create_app
from modelyard.metrics import endpoints
from modelyard.workloads.kthena.unified import with_unified

PAGE = """\
# HELP vllm:num_requests_waiting Requests that wait.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{model_name="m"} 3.0
# HELP vllm:generation_tokens_total Tokens.
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{model_name="m"} 700.0
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{le="0.5",model_name="m"} 1.0
vllm:time_to_first_token_seconds_bucket{le="+Inf",model_name="m"} 2.0
vllm:time_to_first_token_seconds_count{model_name="m"} 2.0
vllm:time_to_first_token_seconds_sum{model_name="m"} 0.9
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running 1.0
"""


class Engine(ThreadingHTTPServer):
    """An engine that answers with ``status`` and ``page``."""

    def __init__(self, page: str = PAGE, status: int = 200) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.page, self.status, self.asked = page, status, list[str]()


class _Handler(BaseHTTPRequestHandler):
    server: Engine

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(self.server.page.encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def running(server: HTTPServer) -> Iterator[str]:
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def relay(engine: Engine, path: str = "/metrics", names: str = "vLLM") -> Iterator[str]:
    with running(engine) as url, relaying(f"{url}{path}", names) as own:
        yield own


@contextmanager
def relaying(source: str, names: str = "") -> Iterator[str]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = TestServer(create_app(source, names))
    asyncio.run_coroutine_threadsafe(server.start_server(), loop).result()
    try:
        yield str(server.make_url("")).rstrip("/")
    finally:
        asyncio.run_coroutine_threadsafe(server.close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def get(url: str) -> tuple[int, str]:
    answer = urllib3.request("GET", url, retries=False)
    return answer.status, answer.data.decode()


def samples(page: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (one.name, tuple(sorted(one.labels.items()))): one.value for family in families(page) for one in family.samples
    }


def test_the_page_is_shown_with_copies_under_unified_names() -> None:
    engine = Engine()
    with relay(engine, "/prom") as url:
        status, page = get(f"{url}/metrics")
        assert get(f"{url}/health")[0] == 200
    assert (status, engine.asked) == (200, ["/prom"])
    assert page.startswith(PAGE.rstrip("\n"))
    found, of_engine = samples(page), samples(PAGE)
    assert of_engine.items() <= found.items()
    unified = {key: value for key, value in found.items() if key[0].startswith("kthena:")}
    renamed = {(name.replace("vllm:", "kthena:"), labels): value for (name, labels), value in of_engine.items()}
    assert unified == {key: value for key, value in renamed.items() if "running" not in key[0]}


def test_sglangs_own_names_become_the_unified_ones() -> None:
    page = "# TYPE sglang:num_queue_reqs gauge\nsglang:num_queue_reqs 4.0\nsglang:token_usage 0.5\n"
    assert with_unified(page, "SGLang").splitlines()[3:] == [
        "# TYPE kthena:num_requests_waiting gauge",
        "kthena:num_requests_waiting 4.0",
    ]
    assert with_unified(page, "vLLM") == page
    assert with_unified(page, "") == page


def test_a_counter_without_total_in_its_type_line_is_renamed_too() -> None:
    page = "# TYPE vllm:generation_tokens counter\nvllm:generation_tokens_total 7.0\n"
    assert "kthena:generation_tokens_total 7.0" in with_unified(page, "vLLM")


@given(st.text())
def test_any_page_is_kept_as_it_is(page: str) -> None:
    assert with_unified(page, "vLLM").startswith(page.rstrip("\n"))


@pytest.mark.parametrize("path", ["/", "/v1/models", "/metrics/x", "/x/metrics", "/v1/load_lora_adapter"])
def test_nothing_else_of_the_engine_can_be_asked(path: str) -> None:
    engine = Engine()
    with relay(engine) as url:
        assert get(f"{url}{path}")[0] == 404
    assert engine.asked == []


def test_an_engine_without_a_page_is_502(monkeypatch: pytest.MonkeyPatch) -> None:
    with relay(Engine(status=404)) as url:
        assert get(f"{url}/metrics") == (502, get(f"{url}/metrics")[1])
        assert "HTTP status 404" in get(f"{url}/metrics")[1]
    monkeypatch.setattr(endpoints, "MAX_BODY", 10)
    with relay(Engine()) as url:
        assert get(f"{url}/metrics")[0] == 502
    with relaying("http://127.0.0.1:1/metrics") as url:
        status, text = get(f"{url}/metrics")
    assert status == 502
    assert "http://127.0.0.1:1/metrics cannot be read" in text
