"""A port that cannot be listened on: every server says in one line which, who has it, and what to do."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import modelyard

from deployments.server import default_home
from modelyard.engine.__main__ import main as engine
from modelyard.engine.group import GroupBroken, GroupSettings, Ranks
from modelyard.engine.router import main as engine_router
from modelyard.ports import check_listenable, describe_listen_error, find_holder
from modelyard.router.process.service import RouterError
from modelyard.router.process.workers import supervise
from modelyard.router.settings import RouterSettings


@pytest.fixture(params=["127.0.0.1", "0.0.0.0", "::1"])
def taken(request: pytest.FixtureRequest) -> Iterator[tuple[str, int]]:
    """An address on which this process listens."""
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    with socket.socket(family) as holder:
        holder.bind((request.param, 0))
        holder.listen()
        yield request.param, holder.getsockname()[1]


@pytest.fixture
def port() -> Iterator[int]:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield holder.getsockname()[1]


def test_the_holder_of_a_port_is_named(taken: tuple[str, int]) -> None:
    assert find_holder(*taken).endswith(f"(process {os.getpid()})")
    if taken[0] == "0.0.0.0":
        assert find_holder("127.0.0.1", taken[1]) == find_holder(*taken), "it has this address, too"


def test_a_free_port_has_no_holder_and_can_be_listened_on(port: int) -> None:
    assert find_holder("127.0.0.99", port) == ""
    check_listenable("127.0.0.99", port)
    with pytest.raises(OSError, match="in use"):
        check_listenable("127.0.0.1", port)


@pytest.mark.parametrize(
    ("host", "port", "reason"),
    [
        ("192.0.2.1", 4200, "cannot listen on 192.0.2.1:4200: this machine has no such address; give one of its own"),
        ("no-such-host.invalid", 80, "cannot listen on no-such-host.invalid:80: no-such-host.invalid has no address"),
        ("2001:db8::1", 4200, "cannot listen on [2001:db8::1]:4200: "),
    ],
)
def test_an_address_that_cannot_be_had_is_told_apart(host: str, port: int, reason: str) -> None:
    with pytest.raises((OSError, OverflowError)) as raised:
        check_listenable(host, port)
    line = describe_listen_error(host, port, raised.value)
    assert line.startswith(reason)
    assert "\n" not in line


def assert_one_line(text: str, port: int, remedy: str) -> None:
    (line,) = text.strip().splitlines()
    assert f"cannot listen on 127.0.0.1:{port}: " in line
    assert f"(process {os.getpid()}) listens there; end it, or {remedy}" in line


@pytest.mark.parametrize("more", [(), ("--background",), ("--without-authentication",)])
def test_the_prefect_server_names_who_has_its_port(port: int, more: tuple[str, ...], tmp_path: Path) -> None:
    done = modelyard("server", "--port", port, "--home", tmp_path, *more)
    assert (done.code, done.out) == (1, ""), "nothing for `eval`"
    assert_one_line(done.err, port, "choose another --port")


@pytest.mark.parametrize("run", [engine, engine_router])
def test_the_simulated_engine_and_its_router_name_who_has_their_port(
    port: int, run: object, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--model", "m"] if run is engine else ["--prefill", "http://x", "--decode", "http://x"]
    assert (engine if run is engine else engine_router)(["--port", str(port), *arguments]) == 1
    assert_one_line(capsys.readouterr().err, port, "choose another --port")


async def test_a_group_of_engines_names_its_own_port(port: int) -> None:
    with pytest.raises(GroupBroken) as raised:
        async with Ranks(GroupSettings(2, 0, "127.0.0.1", port)).open("127.0.0.1"):
            pass
    assert_one_line(str(raised.value), port, "choose another port in --dist-init-addr or --master-port")


async def test_several_router_workers_name_who_has_their_port(port: int) -> None:
    with pytest.raises(RouterError) as raised:
        await supervise(RouterSettings(host="127.0.0.1", port=0, metrics_port=port, workers=2))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().remove_signal_handler(number)
    assert_one_line(str(raised.value), port, "choose another --port or --metrics-port")


def test_the_server_keeps_its_data_in_a_folder_of_our_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT_HOME", raising=False)
    monkeypatch.setenv("MODELYARD_HOME", str(tmp_path))
    assert default_home() == tmp_path / "prefect"
    monkeypatch.delenv("MODELYARD_HOME")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_home() == tmp_path / "modelyard" / "prefect"
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "mine"))
    assert default_home() == tmp_path / "mine"
