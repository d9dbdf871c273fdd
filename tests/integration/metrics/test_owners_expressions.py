"""Expressions of owners against a Prometheus that is real, slow or endless: each on its own, within limits."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from fleet_fixture import Gauges, MetricSource
from prometheus_server import PrometheusServer, free_port

from modelyard.metrics.prometheus import expressions as module
from modelyard.metrics.prometheus.client import Prometheus, PrometheusSettings
from modelyard.metrics.prometheus.expressions import AT_ONCE, MAX_ANSWER, MOST, PLACES, Expressions
from modelyard.metrics.vocabulary.queries import Expression
from modelyard.metrics.vocabulary.scope import scoped
from modelyard.metrics.vocabulary.values import Allowed
from modelyard.objects import Key

pytestmark = pytest.mark.integration


class Server(ThreadingHTTPServer):
    request_queue_size = 128


class Slow:
    """A server in the manner of Prometheus, where some expressions hang and some answer without end."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.hanging: Counter[str] = Counter()
        """Questions that hung, by namespace."""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                (query,) = parse_qs(urlsplit(self.path).query)["query"]
                if "hang" in query:
                    outer.hanging[query.split('"')[1]] += 1
                    outer.let_go.wait(20)
                self.send_response(200)
                self.end_headers()
                result: Any = [0, "7"]
                if "much" in query:
                    result = [{"metric": {"x": "y" * 1000, "n": str(n)}, "value": [0, "1"]} for n in range(1500)]
                with contextlib.suppress(ConnectionError):
                    self.wfile.write(json.dumps({"data": {"result": result}}).encode())

            def log_message(self, *_: Any) -> None:
                return

        self.server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.settings = PrometheusSettings(base_url=f"http://127.0.0.1:{self.server.server_port}")


@pytest.fixture
def slow() -> Iterator[Slow]:
    server = Slow()
    yield server
    server.let_go.set()
    server.server.shutdown()
    server.server.server_close()


@pytest.fixture
async def hasty(slow: Slow) -> AsyncIterator[Expressions]:
    async with Prometheus(slow.settings) as prometheus, Expressions(prometheus) as expressions:
        yield expressions


@pytest.mark.timing_sensitive("a healthy namespace is answered within five seconds while sixteen take every place")
async def test_who_is_slow_has_his_share_and_waits_behind_the_others(
    slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SECONDS", 5.0)
    monkeypatch.setattr(module, "TOTAL_SECONDS", 7.5)
    hostile = [Expression(f"hostile-{n:02}", f"hang_{m}") for n in range(PLACES // AT_ONCE) for m in range(MOST)]
    healthy = Expression("shop", "7")
    async with Prometheus(slow.settings) as prometheus, Expressions(prometheus) as expressions:
        await expressions.numbers([*hostile, healthy])
        answers = await expressions.numbers([*hostile, healthy])
    assert answers.pop(healthy) == 7
    assert all("no answer within" in str(answer) for answer in answers.values())
    assert len(slow.hanging) == PLACES // AT_ONCE
    assert max(slow.hanging.values()) <= 2 * 2 * AT_ONCE, "two looks, in each of which there is time for two turns"


async def test_an_answer_without_end_is_an_error(hasty: Expressions) -> None:
    much, healthy = Expression("shop", "much"), Expression("shop", "7")
    answers = await hasty.numbers([much, healthy])
    assert answers[healthy] == 7
    assert f"larger than {MAX_ANSWER} bytes" in str(answers[much])


async def test_more_than_its_share_is_named_and_not_asked(hasty: Expressions) -> None:
    many = {Key("shop", f"v{n:02}"): str(n) for n in range(MOST + 2)}
    found, problems = await hasty.totals({**many, Key("other", "v"): "1"})
    assert len(found) == MOST + 1
    assert len(problems) == 2
    assert all(f"more than {MOST} different expressions in shop" in text for text in problems.values())


WORDS = (
    "a", "sum", "by", "without", "on", "ignoring", "offset", "and", "or", "unless", "atan2", "bool", "start", "end",
    "group_left", "inf", "nan", "namespace",
)  # fmt: skip
PIECES = (
    *WORDS, *"(){},+-*@#\n\r", "[5m]", "[5m:1m]", "==", "=", "=~", "5m", "1", "'x'", '"victim"', "`x`", "rate(",
    "a[5m]", "sum by (a) (", "{a='b'}", "{}", "on (a)", "offset 1s", "@ end()", "a)", "a))", "start()", "a +",
    'namespace="victim"',
)  # fmt: skip
"""What expressions are made of; every word names a series too."""


@pytest.fixture(scope="module")
async def watched(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """A real Prometheus with an engine in each of two namespaces."""
    source = MetricSource()
    for namespace, running in (("shop", 10), ("victim", 14)):
        raw = [f'{word}{{namespace="{namespace}"}} 1' for word in WORDS]
        source.pods[namespace, "p"] = Gauges("m", running=running, raw=raw)
    server = PrometheusServer(tmp_path_factory.mktemp("prometheus"), free_port(), source.address, interval="2s")
    server.start()
    async with Prometheus(PrometheusSettings(base_url=server.url)) as prometheus:
        while len(await prometheus.query("vllm:num_requests_running", "a test")) < 2:
            await asyncio.sleep(0.2)
    yield server.url
    server.kill()
    source.close()


async def test_wake_expressions_of_any_form(watched: str) -> None:
    async with Prometheus(PrometheusSettings(base_url=watched)) as prometheus, Expressions(prometheus) as expressions:
        found, problems = await expressions.totals(
            {
                Key("shop", "scalar"): "scalar(vector(3))",
                Key("shop", "number"): "2.5",
                Key("shop", "vector"): "vllm:num_requests_running",
                Key("shop", "same"): "vllm:num_requests_running ",
                Key("shop", "empty"): "nothing_of_that_name",
                Key("shop", "nan"): "vector(NaN)",
                Key("victim", "broken"): "sum(",
                Key("victim", "void"): " ",
            }
        )
    assert found == {
        Key("shop", "scalar"): 3,
        Key("shop", "number"): 2.5,
        Key("shop", "vector"): 10,
        Key("shop", "same"): 10,
    }
    assert list(problems) == [Key("victim", "broken"), Key("victim", "void")]
    assert "VariantAutoscaling victim/broken" in problems[Key("victim", "broken")]
    assert "modelyard.dev/wake-query" in problems[Key("victim", "broken")]
    assert "victim/void" in problems[Key("victim", "void")]


@pytest.mark.parametrize(
    ("allowed", "says"), [(Allowed.OWN, "reads beyond"), (Allowed.ANY, 14.0), (Allowed.NONE, "switched off")]
)
async def test_a_tenant_reads_the_metrics_of_another_only_where_that_is_allowed(
    watched: str, allowed: Allowed, says: str | float
) -> None:
    spying = Expression("shop", 'sum(vllm:num_requests_running{namespace="victim"})')
    async with (
        Prometheus(PrometheusSettings(base_url=watched)) as prometheus,
        Expressions(prometheus, allowed) as expressions,
    ):
        answer = (await expressions.numbers([spying]))[spying]
    assert answer == says if isinstance(says, float) else says in str(answer)


def looked_at(url: str, text: str, at: float | None = None) -> int | None:
    """How many samples Prometheus read for an expression; ``None``: it is none."""
    try:
        asked = urlencode({"query": text, "stats": "all", "time": at or time.time()})
        with urllib.request.urlopen(f"{url}/api/v1/query?{asked}") as answer:
            return int(json.load(answer)["data"]["stats"]["samples"]["totalQueryableSamples"])
    except urllib.error.HTTPError as error:
        if error.code != 400:
            raise
        return None


def test_prometheus_reads_no_sample_of_another_namespace_whatever_is_written(watched: str) -> None:
    assert all(looked_at(watched, f'{{__name__="{word}"}}') for word in WORDS)
    chance = random.Random(8)
    understood = 0
    for _ in range(6000):
        text = chance.choice(["", " "]).join(chance.choices(PIECES, k=chance.randint(1, 9)))
        try:
            narrowed = scoped(text, "nobody")
        except ValueError:
            continue
        read = looked_at(watched, narrowed)
        assert not read, (text, narrowed)
        understood += read is not None
    assert understood > 200


@pytest.mark.parametrize(
    "text",
    [
        'vllm:num_requests_running{pod="p"}',
        "sum by (pod) (rate(vllm:request_success_total[1m] offset 1s)) or on (pod, namespace) a{}",
        "max_over_time((a > bool 0)[10s:1s] @ end()) or a offset -1s",
        "-a ^ 2 + vector(1) * scalar(a) unless ignoring (pod) by",
        'label_replace(a, "owner", "$1", "namespace", "(.*)")',
        'count_values("namespace", a) == 1 # how many',
        "quantile_over_time(0.9, a[1h]) atan2 absent(nothing) or Inf + vector(NaN)",
        "topk by (pod) (3, {__name__=~`vllm:.*`, pod!=''})",
        "avg without (pod) (a @ 1700000000)",
    ],
)
def test_what_prometheus_understands_it_understands_narrowed(watched: str, text: str) -> None:
    now = time.time() - 5  # what was scraped until then is there
    read, whole = looked_at(watched, scoped(text, "shop"), now), looked_at(watched, text, now)
    assert read is not None
    assert whole is not None
    assert 2 * read == whole, "both namespaces have the same series"
