"""One run of a flow in this terminal (``modelyard run``), recorded by the Prefect server at PREFECT_API_URL."""

from __future__ import annotations

import asyncio
import importlib
import signal
from collections.abc import Mapping
from functools import partial
from typing import Any

import httpx
from prefect import Flow, get_client
from prefect.exceptions import TerminationSignal
from prefect.settings import get_current_settings
from pydantic import BaseModel, ValidationError

from flows.forms import arguments, model_of
from modelyard.cli.options import UsageError, faults
from modelyard.objects import describe_url_problem

_ELSEWHERE = {
    "carry-out": "carry_out.carry_out_objects",
    "re-run-benchmarks": "benchmark.re_run_benchmarks",
    "refit-profiles": "benchmark.refit_profiles",
    "verify-models": "deliver.verify_models",
}
FLOWS = ("autoscale", "benchmark", "deliver", "onboard", "reconcile", "replay", "roll-out", *_ELSEWHERE)
"""Names of the flows, most of them functions of the same name, each in a module of its own."""


class NoServer(RuntimeError):
    """There is no Prefect server to record the run; the message says why and what to do."""

    def __init__(self, problem: str) -> None:
        super().__init__(
            f"no Prefect server: {problem}.\nStart one with `modelyard server` (it prints the address), or point "
            "PREFECT_API_URL at yours, for example PREFECT_API_URL=http://127.0.0.1:4200/api"
        )


async def server_problem() -> str | None:
    """Why the Prefect server cannot be used, or ``None``."""
    api = get_current_settings().api
    url = api.url
    if not url:
        return "PREFECT_API_URL is not set"
    if problem := describe_url_problem(url):
        return f"PREFECT_API_URL {problem}"
    try:
        # As patient as the run's own requests: a busy server is no missing one, and a nightly job has time. Who refuses
        # the connection is told at once.
        async with asyncio.timeout(api.request_timeout), get_client() as client:
            error = await client.api_healthcheck()
            if error is None:
                await client.request("GET", "/admin/version")
    except httpx.HTTPStatusError as refused:
        return f"{url} does not let us in ({refused.response.status_code}): set PREFECT_API_AUTH_STRING"
    except TimeoutError:
        return f"{url} did not answer within {api.request_timeout:g} s (PREFECT_API_REQUEST_TIMEOUT)"
    except Exception as raised:
        error = raised
    return None if error is None else f"nothing answers at {url} ({type(error).__name__}: {error})"


def end_at_sigterm(main: asyncio.Task[Any] | None, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Cancel the main task where asyncio has caught the exception that Prefect makes of SIGTERM.

    Prefect's engine raises it wherever the signal arrives. Inside a callback or a transport of the event loop it would
    be logged with a traceback, and the run would go on. Every other error is for the loop's own handler.
    """
    if not isinstance(context.get("exception"), TerminationSignal):
        loop.default_exception_handler(context)
    elif main is not None:
        main.cancel()


def load(name: str) -> Flow[Any, Any]:
    """Return the flow of this name, one of ``FLOWS``."""
    function = name.replace("-", "_")
    module, _, function = _ELSEWHERE.get(name, f"{function}.{function}").partition(".")
    flow: Flow[Any, Any] = getattr(importlib.import_module(f"flows.{module}"), function)
    return flow


async def run(name: str, parameters: BaseModel) -> int:
    """Run the flow; the exit code. Raises ``NoServer``."""
    if problem := await server_problem():
        raise NoServer(problem)
    asyncio.get_running_loop().set_exception_handler(partial(end_at_sigterm, asyncio.current_task()))
    # After the check, so that a missing server is told in a second.
    flow: Any = load(name)
    state = await flow(**arguments(parameters), return_state=True)
    print(f"{state.name}: {state.message}" if state.message else state.name)
    return 0 if state.is_completed() else 1


def run_here(name: str, given: Mapping[str, Any]) -> int:
    """Check the parameters, run the flow, and return the exit code. Raises ``UsageError`` and ``NoServer``.

    0: the run completed; 1: it did not; 128 + n: signal n ended it (the run gives up its Lease on the way).
    """
    name = name.replace("_", "-")
    if name not in FLOWS:
        raise UsageError(f"{name}: no such flow; there are {', '.join(FLOWS)}")
    model = model_of(load(name))
    try:
        parameters = model.model_validate(given)
    except ValidationError as error:
        raise UsageError(*faults(error, model)) from error
    try:
        return asyncio.run(run(name, parameters))
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except (TerminationSignal, asyncio.CancelledError):  # Prefect's engine turns SIGTERM into the first.
        return 128 + signal.SIGTERM
