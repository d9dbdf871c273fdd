"""The parts of a router process that need no socket."""

from __future__ import annotations

import asyncio
import json
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from modelyard.metrics.vocabulary.pages import parse
from modelyard.objects import Key
from modelyard.router.process.gauges import EngineReading, wanted
from modelyard.router.process.limits import LocalLimits, SharedLimits
from modelyard.router.process.telemetry import AccessLog, RequestRecord, RouterMetrics
from modelyard.router.process.wake_queue import QueueFull, WakeQueue
from modelyard.router.process.workers import share
from modelyard.router.settings import RouterSettings
from modelyard.routing.fleet import RoutedFleet
from modelyard.routing.limits import OverBudget
from modelyard.routing.objects import Route, route as read_route

KEY = Key("shop", "r")


def a_route(**limit: object) -> Route:
    spec = {"modelName": "m", "rules": [{"targetModels": [{"modelServerName": "s"}]}]}
    if limit:
        spec["rateLimit"] = {"unit": "month", **limit}  # type: ignore[assignment]
    metadata = {"name": "r", "namespace": "shop", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return read_route({"metadata": metadata, "spec": spec})


async def test_workers_take_from_one_budget_and_a_limit_lifted_is_lifted_for_all(tmp_path: Path) -> None:
    workers = [SharedLimits(tmp_path) for _ in range(3)]
    for one in workers:
        one.configure(KEY, a_route(inputTokensPerUnit=10, outputTokensPerUnit=5))
    assert [isinstance(await one.admit(KEY, 4), OverBudget) for one in workers] == [False, False, True]
    await workers[2].settle(KEY, 4, 0, 0)
    assert not isinstance(await workers[2].admit(KEY, 4), OverBudget)
    await workers[0].settle(KEY, 4, 2, 50)
    refused = await workers[1].admit(KEY, 1)
    assert isinstance(refused, OverBudget)
    assert refused.kind == "output"
    for one in workers:  # twice as much, and what was used in proportion
        one.configure(KEY, a_route(inputTokensPerUnit=20))
    left = await workers[1].admit(KEY, 0)
    assert not isinstance(left, OverBudget)
    assert left.input == pytest.approx(8, abs=0.1)
    assert left.output is None
    for one in workers:
        one.configure(KEY, None)
        assert not isinstance(await one.admit(KEY, 100), OverBudget)


TAKEN = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30), st.integers(0, 9)), max_size=20)


@given(TAKEN)
def test_kept_in_files_or_in_memory_a_budget_is_the_same(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int, int]]
) -> None:
    async def run() -> None:
        stores = LocalLimits(), SharedLimits(tmp_path_factory.mktemp("budgets"))
        for one in stores:
            one.configure(KEY, a_route(inputTokensPerUnit=100, outputTokensPerUnit=50))
        for estimated, real, output in steps:
            kinds = []
            for one in stores:
                found = await one.admit(KEY, estimated)
                kinds.append(found.kind if isinstance(found, OverBudget) else "")
                if not kinds[-1]:
                    await one.settle(KEY, estimated, real, output)
            assert kinds[0] == kinds[1]

    asyncio.run(run())


async def test_the_wake_queue_has_a_bound_for_each_server_each_namespace_and_for_all() -> None:
    shown: list[tuple[str, str, str, int]] = []
    wake_queue = WakeQueue(8, lambda *one: shown.append(one))
    names = [Key(space, number) for space in "ab" for number in "0011"]
    tasks = [asyncio.create_task(wake_queue.wait(key, "m", "u", 60)) for key in names]
    await asyncio.sleep(0)
    assert wake_queue.waiting == 8
    with pytest.raises(QueueFull):
        await wake_queue.wait(Key("c", "new"), "m", "u", 60)
    tasks[0].cancel()
    await asyncio.gather(tasks[0], return_exceptions=True)
    with pytest.raises(QueueFull):
        await wake_queue.wait(Key("b", "new"), "m", "u", 60)
    with pytest.raises(QueueFull):
        await wake_queue.wait(Key("a", "1"), "m", "u", 60)
    wake_queue.wake([*names, Key("a", "never")])
    assert await asyncio.gather(*tasks[1:]) == [True] * 7
    assert wake_queue.waiting == 0
    assert wake_queue.servers == []
    assert sum(one[3] for one in shown) == 0
    assert not await wake_queue.wait(Key("a", "0"), "m", "u", 0)
    assert not await wake_queue.wait(Key("a", "0"), "m", "u", 0.01)
    assert wake_queue.servers == []


VLLM = """
vllm:num_requests_waiting{engine="0"} 1
vllm:num_requests_waiting{engine="1"} 2
vllm:num_requests_running{engine="0"} NaN
vllm:num_requests_running{engine="1"} 4
vllm:gpu_cache_usage_perc{engine="0"} 0.2
vllm:gpu_cache_usage_perc{engine="1"} 0.4
vllm:time_to_first_token_seconds_sum{engine="0"} %g
vllm:time_to_first_token_seconds_count{engine="0"} %g
"""


def test_what_an_engine_tells_is_summed_averaged_and_fades() -> None:
    reading = EngineReading()

    def told(total: float, count: float, now: float) -> object:
        return reading.take("vLLM", parse((VLLM % (total, count)).encode(), wanted("vLLM")), now)

    first = reading.take("vLLM", parse((VLLM % (10, 5)).encode(), wanted("vLLM")), 0.0)
    assert first is not None
    assert (first.waiting, first.running, first.usage, first.ttft) == (3, 4, pytest.approx(0.3), 0)
    second = reading.take("vLLM", parse((VLLM % (18, 9)).encode(), wanted("vLLM")), 1.0)
    assert second is not None
    assert second.ttft == 2.0
    told(18, 9, 100.0)
    assert reading.means[next(iter(reading.means))] == 2.0
    told(18, 9, 122.0)
    assert set(reading.means.values()) == {0.0}


RECORDED = Path(__file__).parents[2] / "data" / "vllm-0.32"


@pytest.mark.parametrize(
    ("page", "waiting", "running"),
    [("metrics-idle.prom", 0, 0), ("metrics-under-load.prom", 8, 24), ("metrics-with-lora.prom", 0, 3)],
)
def test_a_recorded_page_of_metrics(page: str, waiting: float, running: float) -> None:
    gauges = EngineReading().take("vLLM", parse((RECORDED / page).read_bytes(), wanted("vLLM")), 5.0)
    assert gauges is not None
    assert (gauges.at, gauges.waiting, gauges.running) == (5.0, waiting, running)
    assert 0 <= gauges.usage < 1


@pytest.mark.parametrize(
    ("engine", "page"),
    [
        ("vLLM", b""),
        ("vLLM", b"# HELP up Whether it is up.\nup 1\nprocess_cpu_seconds_total 5\n"),
        ("MindIE", b"vllm:num_requests_running 4\nnum_requests_running 4\n"),
        ("vLLM", b"sglang:num_running_reqs 4\n"),
        ("SGLang", b"vllm:num_requests_running 4\n"),
        ("vLLM", b"vllm:num_requests_running NaN\nvllm:num_requests_waiting +Inf\n"),
        ("vLLM", b"vllm:time_to_first_token_seconds_sum 3\nvllm:time_to_first_token_seconds_count 1\n"),
    ],
)
def test_a_page_without_known_metrics_gives_no_gauges(engine: str, page: bytes) -> None:
    assert EngineReading().take(engine, parse(page, wanted(engine)), 5.0) is None


def test_a_gauge_that_a_page_lacks_is_unknown() -> None:
    page = parse(b"vllm:num_requests_running 4\n", wanted("vLLM"))
    gauges = EngineReading().take("vLLM", page, 5.0)
    assert gauges is not None
    assert gauges.running == 4
    assert all(map(math.isnan, (gauges.waiting, gauges.usage)))


def test_labels_have_bounds() -> None:
    metrics = RouterMetrics(RoutedFleet())
    for number in range(50):
        record = RequestRecord("POST", f"/v1/models/{number}", 0.0, status=404, model=f"model-{number}")
        metrics.over(record, 1.0)
        metrics.over(RequestRecord("POST", f"/{number}", 0.0, status=404, reason="authentication"), 1.0)
    series = [line for line in metrics.page().decode().splitlines() if line.startswith("kthena_router_requests_total{")]
    assert len(series) == 2
    assert all('model="unknown"' in line for line in series)


def test_no_line_of_the_log_can_be_forged() -> None:
    lines: list[str] = []
    for form in ("text", "json"):
        log = AccessLog(form, RouterMetrics(RoutedFleet()), lines.append)
        record = RequestRecord("POST", '/x"\n[fake] "', 0.0, status=404, reason="r", message="a\r\nb\x1b[31m")
        record.model, record.last = "m\nn", 0.5
        log.add(record, 1.0, "HTTP/1.1")
        asyncio.run(asyncio.wait_for(_written(log), 120))
    text, document = lines
    assert text.count("\n") == 1
    assert "\x1b" not in text
    assert json.loads(document)["model_name"] == "m\nn"
    assert document.count("\n") == 1


async def _written(log: AccessLog) -> None:
    task = asyncio.create_task(log.run())
    await asyncio.sleep(0)
    task.cancel()
    await task


async def test_lines_are_written_though_the_log_ends_before_a_thread_has_begun_with_them() -> None:
    lines, free = list[str](), threading.Event()
    with ThreadPoolExecutor(1) as threads:
        threads.submit(free.wait)
        asyncio.get_running_loop().set_default_executor(threads)
        log = AccessLog("json", RouterMetrics(RoutedFleet()), lines.append)
        log.add(RequestRecord("POST", "/", 0.0), 1.0, "HTTP/1.1")
        task = asyncio.create_task(log.run())
        while log._lines:
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.sleep(0)
        free.set()
        await asyncio.wait_for(task, 120)
    assert len(lines) == 1


def test_workers_share_the_bounds() -> None:
    part = share(RouterSettings(workers=4, max_body=100, max_bodies=1000, max_requests=10, max_waiting=7))
    assert (part.max_bodies, part.max_requests, part.max_waiting, part.max_idle) == (250, 2, 1, 500)
    assert share(RouterSettings(workers=4, max_idle=0)).max_idle == 0, "any number stays any number"
    assert share(RouterSettings(workers=64, max_body=100, max_bodies=1000)).max_bodies == 200
