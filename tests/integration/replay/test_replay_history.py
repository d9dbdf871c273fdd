"""Past traffic out of a real Prometheus, into which a known past was written: rates, token means, gaps, errors."""

from __future__ import annotations

import csv
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import modelyard
from fleet_fixture import MetricSource
from prometheus_server import PrometheusServer, free_port

from modelyard.metrics.prometheus.client import Prometheus, PrometheusError, PrometheusSettings
from modelyard.replay.backtest.history import HistoryRequest, read_history, trace_of
from modelyard.replay.settings import Gaps
from modelyard.traffic.traces.trace import TraceInputError

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[3]
SPACE, MODEL = "chat", "meta-llama/Llama-3.1-8B-Instruct"
MINUTES = 20
SCRAPE = 5


def rate(second: float) -> float:
    """Requests per second: calm, a surge from minute 8 to 12, calm."""
    return 12.0 if 480 <= second < 720 else 3.0


def prompt(second: float) -> float:
    return 200.0 if second < 480 else 600.0


def past(begin: float) -> str:
    """An exposition whose samples carry their times: two engines that share the traffic, and odd ones beside them."""
    lines: list[str] = []

    def series(name: str, kind: str, labels: str, values: list[tuple[float, float]]) -> None:
        lines.append(f"# TYPE {name.removesuffix('_sum').removesuffix('_count')} {kind}")
        for at, value in values:
            lines.append(f"{name}{{{labels}}} {value} {int((begin + at) * 1000)}")

    times = [float(t) for t in range(0, MINUTES * 60 + 1, SCRAPE)]
    done, tokens, written = [0.0], [0.0], [0.0]
    for t in times[1:]:
        grown = sum(rate(t - SCRAPE + s) for s in range(SCRAPE))
        done.append(done[-1] + grown)
        tokens.append(tokens[-1] + grown * prompt(t - 1))
        written.append(written[-1] + grown * 50)
    for pod in ("p", "q"):
        labels = f'namespace="{SPACE}",model_name="{MODEL}",pod="{pod}"'
        half = [(t, value / 2) for t, value in zip(times, done, strict=True)]
        series("vllm:request_success_total", "counter", labels, half)
        series("vllm:num_requests_running", "gauge", labels, [(t, 4.0) for t in times])
        series("vllm:num_requests_waiting", "gauge", labels, [(t, math.nan) for t in times])
        series("vllm:request_prompt_tokens_sum", "untyped", labels, list(zip(times, tokens, strict=True)))
        series("vllm:request_prompt_tokens_count", "untyped", labels, list(zip(times, done, strict=True)))
        series("vllm:request_generation_tokens_sum", "untyped", labels, list(zip(times, written, strict=True)))
        series("vllm:request_generation_tokens_count", "untyped", labels, list(zip(times, done, strict=True)))
    # Nobody recorded this one from minute 6 to 12, and nothing of its tokens.
    holes = [(t, value) for t, value in zip(times, done, strict=True) if not 360 <= t < 720]
    series("vllm:request_success_total", "counter", f'namespace="{SPACE}",model_name="gappy",pod="g"', holes)
    return "\n".join(lines) + "\n"


class Recorded:
    def __init__(self, url: str, begin: float) -> None:
        self.url, self.begin = url, begin

    def request(self, model: str = MODEL, first: float = 60, last: float = 1140, **more: object) -> HistoryRequest:
        return HistoryRequest(SPACE, model, self.begin + first, self.begin + last, **more)  # type: ignore[arg-type]

    def connect(self) -> Prometheus:
        return Prometheus(PrometheusSettings(base_url=self.url, timeout=60))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    source = MetricSource()
    begin = float(int(time.time()) - MINUTES * 60 - 120)
    source.frozen = past(begin).encode()
    server = PrometheusServer(tmp_path_factory.mktemp("prometheus"), free_port(), source.address)
    server.start()
    try:
        deadline = time.monotonic() + 120
        while not _has_it(server.url, begin):
            assert time.monotonic() < deadline, "Prometheus did not take the past"
            time.sleep(0.2)
        yield Recorded(server.url, begin)
    finally:
        server.kill()
        source.close()


def _has_it(url: str, begin: float) -> bool:
    import urllib.parse
    import urllib.request

    query = urllib.parse.urlencode({"query": "count(vllm:request_success_total)", "time": begin + MINUTES * 60})
    with urllib.request.urlopen(f"{url}/api/v1/query?{query}", timeout=60) as answer:
        return bool(json.load(answer)["data"]["result"])


async def test_rates_and_token_means_are_those_of_the_past(recorded: Recorded) -> None:
    request = recorded.request()
    async with recorded.connect() as prometheus:
        history = await read_history(prometheus, request)
    assert list(history.columns) == ["rate", "prompt", "output"]
    assert len(history) == 72
    assert not history.isna().any().any(), "NaN gauges take nothing away from the counter"
    # Away from the edges of the surge, which the window smooths.
    for begin, row in zip(history.index, history.itertuples(), strict=True):
        second = 60 + float(begin)
        if all(abs(second + 7.5 - edge) > 45 for edge in (480, 720)):
            assert row.rate == pytest.approx(rate(second), rel=0.02), second
            assert row.prompt == pytest.approx(prompt(second), rel=0.02), second
        assert row.output == pytest.approx(50, rel=0.01)
    # The window lies around its step: nothing comes early or late on the whole.
    assert history["rate"].sum() * 15 == pytest.approx(sum(rate(s) for s in range(60, 1140)), rel=0.01)
    middle = (history["rate"] * history.index).sum() / history["rate"].sum() + 7.5
    assert middle == pytest.approx(sum(rate(s) * (s - 60) for s in range(60, 1140)) / 5400, abs=5)
    trace, remarks = trace_of(history, request, seed=1)
    assert not remarks
    assert trace.models == (MODEL,)
    assert trace.duration == 1080
    assert len(trace) == pytest.approx(5400, rel=0.06)
    early = trace.prompt[trace.at < 350].mean()
    assert early == pytest.approx(200, rel=0.15)
    assert trace.prompt[trace.at > 450].mean() == pytest.approx(600, rel=0.15)


async def test_more_points_than_a_query_may_have_are_asked_for_in_parts(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with recorded.connect() as prometheus:
        whole = await read_history(prometheus, recorded.request())
        before = prometheus.queries
        monkeypatch.setattr("modelyard.replay.backtest.history.POINTS", 25)
        parts = await read_history(prometheus, recorded.request())
        assert prometheus.queries - before == 9
    assert parts.equals(whole)


async def test_gaps_are_an_error_unless_somebody_says_what_they_are(recorded: Recorded) -> None:
    request = recorded.request("gappy", prompt=300.0, output=40.0)
    async with recorded.connect() as prometheus:
        history = await read_history(prometheus, request)
    missing = int(history["rate"].isna().sum())
    assert 18 <= missing <= 24
    with pytest.raises(TraceInputError, match=rf"gappy in namespace chat: {missing} of 72 steps have no data, first"):
        trace_of(history, request)
    for gaps, expected in ((Gaps.ZERO, 0), (Gaps.INTERPOLATE, 720)):
        trace, (remark,) = trace_of(history, recorded.request("gappy", prompt=300.0, output=40.0, gaps=gaps))
        assert f"{missing} of 72 steps have no data" in remark
        inside = int(((trace.at > 360) & (trace.at < 600)).sum())
        assert inside == pytest.approx(expected, rel=0.15)
    with pytest.raises(TraceInputError, match="no prompt tokens of its requests; give their mean with --prompt-tokens"):
        trace_of(history, recorded.request("gappy", gaps=Gaps.ZERO))


async def test_errors_say_what_there_is(recorded: Recorded) -> None:
    async with recorded.connect() as prometheus:
        with pytest.raises(TraceInputError, match=r"no traffic of model gone .* models with data there: gappy, meta-"):
            await read_history(prometheus, recorded.request("gone"))
        elsewhere = HistoryRequest("empty", MODEL, recorded.begin, recorded.begin + 600)
        with pytest.raises(TraceInputError, match="nothing of namespace empty at all; correct --namespace, --model"):
            await read_history(prometheus, elsewhere)
    with pytest.raises(TraceInputError, match="--to must be at least one step"):
        recorded.request(last=60)
    with pytest.raises(TraceInputError, match="--step: must be at least 1s, not 0s"):
        recorded.request(step=0.0)
    async with Prometheus(PrometheusSettings(base_url=f"http://127.0.0.1:{free_port()}", attempts=1)) as nobody:
        with pytest.raises(PrometheusError, match="query for arrivals of the past failed: connection failed"):
            await read_history(nobody, recorded.request())


def test_the_command_replays_the_past(recorded: Recorded) -> None:
    when = [f"--{name}={recorded.begin + at:.0f}" for name, at in (("from", 60.0), ("to", 660.0))]
    stamps = [time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(float(text.split("=")[1]))) for text in when]
    done = modelyard(
        *("replay", "-f", str(ROOT / "config/samples/plan/manifests.yaml")),
        *("--prometheus", recorded.url, "--namespace", SPACE, "--model", MODEL),
        *("--from", stamps[0], "--to", stamps[1], "-o", "csv"),
    )
    assert done.code == 0, done.err
    (row,) = csv.DictReader(done.out.splitlines())
    assert int(row["requests"]) == pytest.approx(sum(rate(s) for s in range(60, 660)), rel=0.12)
