"""The agent's pure rules: images, variables, back-off, probes, addresses."""

from __future__ import annotations

import asyncio
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelyard.local.agent.containers import restart_delay
from modelyard.local.agent.launch import CannotRun, expand, plan, repository
from modelyard.local.agent.nodes import Addresses
from modelyard.local.agent.probes import ProbeFailure, ProbeTarget, ProbeTiming, watch
from modelyard.local.paths import LocalClusterError


@pytest.mark.parametrize(
    ("failures", "seconds"),
    [(0, 0), (1, 0), (2, 10), (3, 20), (4, 40), (5, 80), (6, 160), (7, 300), (8, 300), (5000, 300)],
)
def test_back_off_as_on_a_cluster(failures: int, seconds: float) -> None:
    assert restart_delay(failures) == seconds
    assert restart_delay(failures, 0.1) == pytest.approx(seconds / 10)


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("modelyard.dev/simulated-engine", "modelyard.dev/simulated-engine"),
        ("modelyard.dev/simulated-engine:1.2", "modelyard.dev/simulated-engine"),
        ("modelyard.dev/simulated-engine:1@sha256:abc", "modelyard.dev/simulated-engine"),
        ("registry:5000/a/b", "registry:5000/a/b"),
        ("alpine:3", "alpine"),
    ],
)
def test_an_image_without_tag_and_digest(image: str, name: str) -> None:
    assert repository(image) == name


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("$(A)", "1"),
        ("x$(A)y$(B)", "x1y2"),
        ("$(MISSING)", "$(MISSING)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$A ${A}", "$A ${A}"),
    ],
)
def test_variables_expand_as_in_kubernetes(text: str, expanded: str) -> None:
    assert expand(text, {"A": "1", "B": "2"}) == expanded


ENGINE = {"name": "e", "image": "modelyard.dev/simulated-engine:v1", "args": ["--model", "$(MODEL)"]}


def test_the_engine_gets_the_pods_address_and_the_containers_port() -> None:
    launch = plan({**ENGINE, "ports": [{"containerPort": 8080}]}, {"MODEL": "m"}, "127.20.1.1", "pod-0")
    assert launch.argv == [
        *(sys.executable, "-m", "modelyard.engine"),
        *("--host", "127.20.1.1", "--port", "8080", "--model", "m"),
    ]
    assert launch.env["MODEL"] == "m"
    assert launch.env["HOSTNAME"] == "pod-0"


def test_the_containers_own_port_argument_wins() -> None:
    launch = plan({**ENGINE, "args": ["--port=9000"]}, {}, "127.20.1.1", "p")
    assert launch.argv[3:] == ["--host", "127.20.1.1", "--port=9000"]


def test_the_users_environment_stays_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "private")
    assert "HF_TOKEN" not in plan(ENGINE, {}, "127.20.1.1", "p").env


@pytest.mark.parametrize(
    "container",
    [
        {"name": "c", "image": "vllm/vllm-openai", "command": ["vllm"]},
        {"name": "c", "image": "modelyard.dev.evil.example/x", "command": ["rm"]},
        {"name": "c", "image": "docker.io/modelyard.dev/x", "command": ["rm"]},
        {"name": "c", "image": "modelyard.dev/other"},
        {"name": "c"},
    ],
)
def test_nothing_else_is_executed(container: dict[str, object]) -> None:
    with pytest.raises(CannotRun) as caught:
        plan(container, {}, "127.20.1.1", "p")
    assert caught.value.permanent
    assert caught.value.reason == "ImageNotRunnable"


@given(st.lists(st.sampled_from(["take", "free"]), max_size=60))
def test_no_address_is_given_twice(steps: list[str]) -> None:
    addresses = Addresses("127.20")
    held: list[str] = []
    for step in steps:
        if step == "take":
            held.append(addresses.take())
        elif held:
            addresses.free(held.pop(0))
        assert len(set(held)) == len(held)
    assert not {addresses.node(index) for index in range(5)} & set(held)


def test_claimed_addresses_are_kept_and_foreign_ones_refused() -> None:
    addresses = Addresses("127.20")
    assert addresses.claim("127.20.1.1")
    assert not addresses.claim("127.20.1.1")
    assert not addresses.claim("127.21.1.1")
    assert addresses.take() == "127.20.1.2"
    with pytest.raises(LocalClusterError):
        addresses.node(254)


@pytest.mark.parametrize(
    ("results", "success", "failure", "verdicts"),
    [
        ([True], 1, 3, [True]),
        ([False, False, True], 1, 3, [True]),
        ([False, False, False], 1, 3, [False]),
        ([True, False, False, True, False], 1, 3, [True]),
        ([True, False, False, False, True], 1, 3, [True, False, True]),
        ([False, True, False, True, True], 2, 1, [False, True]),
    ],
)
async def test_a_probe_changes_its_mind_after_enough_equal_results(
    results: list[bool], success: int, failure: int, verdicts: list[bool]
) -> None:
    coming = iter(results)
    told: list[bool] = []
    over = asyncio.Event()

    async def attempt() -> None:
        try:
            result = next(coming)
        except StopIteration:
            over.set()
            await asyncio.Event().wait()
        if not result:
            raise ProbeFailure("no")

    timing = ProbeTiming(initial_delay=0, period=0, timeout=1, success_threshold=success, failure_threshold=failure)
    task = asyncio.create_task(watch(attempt, timing, elapsed=0, changed=told.append, failed=lambda why: None))
    await over.wait()
    task.cancel()
    assert told == verdicts


def test_probe_ports_by_number_and_name() -> None:
    target = ProbeTarget("127.20.1.1", {"http": 8000}, {})
    assert target.port(9) == 9
    assert target.port("9") == 9
    assert target.port("http") == 8000
    with pytest.raises(ProbeFailure, match="no port named 'grpc'"):
        target.port("grpc")
