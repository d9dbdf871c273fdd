"""Whether a run in this terminal has a server to record it: one that is slow is not one that is missing."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Any

import pytest
from command_line import modelyard
from prefect.exceptions import TerminationSignal
from prefect.settings import PREFECT_API_REQUEST_TIMEOUT, PREFECT_API_URL, temporary_settings

from deployments.foreground import end_at_sigterm, server_problem


async def problem_with(patience: float, answers_after: float) -> str | None:
    """What is said of a server that answers everything so late, in seconds."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(answers_after)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\ntrue")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/api"
        with temporary_settings({PREFECT_API_URL: url, PREFECT_API_REQUEST_TIMEOUT: patience}):
            return await server_problem()


async def test_a_slow_server_is_waited_for_as_long_as_prefect_waits_for_any_answer() -> None:
    assert await problem_with(patience=60, answers_after=0.5) is None


async def test_one_that_says_nothing_is_told_with_the_limit_and_its_setting() -> None:
    problem = await problem_with(patience=0.2, answers_after=30)
    assert problem is not None
    assert "did not answer within 0.2 s (PREFECT_API_REQUEST_TIMEOUT)" in problem


@pytest.mark.parametrize(
    ("flow", "parameters", "message"),
    [
        ("deliver", {"nam": "llama"}, "nam: unknown field - write 'name', or remove it"),
        ("deliver", {"name": "llama", "url": "hf://a/b"}, "url: unknown field - write 'uri', or remove it"),
        ("deliver", {"nodeSelector": {}}, "nodeSelector: unknown field - write 'node_selector', or remove it"),
        ("deliver", {"colour": "red"}, "colour: unknown field - remove it, or write one of "),
        ("deliver", {"kind": "Model"}, "kind: 'Model' is not one of the allowed values - write 'ClusterBaseModel', "),
        ("deliver", {"wait": "perhaps"}, "wait: input should be a valid boolean, unable to interpret input (found "),
        ("deliver", {"uri": "hf://a/b"}, "name: is required - add it"),
        ("onboard", {}, "uri: is required - add it"),
        ("roll_out", {"timeout": 5}, "timeout: unknown field - write 'timeout_seconds', or remove it"),
        ("onboard", {"ratee": 5}, "ratee: unknown field - write 'rate', or remove it"),
        ("autoscale", {"fleet": {"dryrun": True}}, "fleet.dryrun: unknown field - write 'dry_run', or remove it"),
        ("benchmark", {"names": "x"}, "names: unknown field - write 'name', or remove it"),
    ],
)
def test_a_parameter_that_the_flow_does_not_have_is_named_with_the_nearest_one(
    flow: str, parameters: dict[str, Any], message: str
) -> None:
    done = modelyard("run", flow, "--parameters", json.dumps(parameters))
    assert done.code == 2, "nothing was done"
    lines = done.err.splitlines()
    assert [line for line in lines if line.startswith(f"error: {message}")]
    assert all(line.startswith("error: ") for line in lines)


async def test_sigterm_ends_the_run_where_the_event_loop_catches_its_exception(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Prefect raises it wherever the signal arrives; a callback of the event loop is such a place."""

    def interrupted() -> None:
        raise TerminationSignal(signal=15)

    loop = asyncio.get_running_loop()
    run = asyncio.create_task(asyncio.Event().wait())
    loop.set_exception_handler(partial(end_at_sigterm, run))
    try:
        loop.call_soon(interrupted)
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(run, 120)
        assert not caplog.records
        loop.call_soon(lambda: 1 / 0)
        await asyncio.sleep(0)
        assert "ZeroDivisionError" in caplog.text, "other errors are logged"
    finally:
        loop.set_exception_handler(None)
