"""``python -m flows.foreground FLOW``: one run in this terminal, recorded by the Prefect server at PREFECT_API_URL.

Exit code 0: the run completed; 1: it did not; 2: it could not begin (parameters, or no Prefect server).
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
from prefect import get_client
from prefect.settings import get_current_settings
from pydantic import BaseModel, ValidationError

from flows.parameters import AutoscaleParameters, ReplayParameters

NO_SERVER = """error: no Prefect server: {problem}.
Start one with `python -m deployments.server` (it prints the address), or point PREFECT_API_URL at yours,
for example PREFECT_API_URL=http://127.0.0.1:4200/api"""
HEALTH_TIMEOUT = 10.0
FLOWS: Mapping[str, type[BaseModel]] = {
    "autoscale": AutoscaleParameters,
    "replay": ReplayParameters,
}
"""The flows, each in the module of its name, and their parameters."""


def parser() -> argparse.ArgumentParser:
    """The options; each stands for one of the flow's parameters."""
    whole = argparse.ArgumentParser(prog="python -m flows.foreground", description="Run a flow in the foreground.")
    flows = whole.add_subparsers(dest="flow", required=True, metavar="|".join(FLOWS))
    for name in FLOWS:
        prog = "modelyard autoscale" if name == "autoscale" else None
        options = flows.add_parser(name, prog=prog, help=f"one run of {name}")
        options.add_argument(
            "--parameters", metavar="JSON", help="the flow's parameters as JSON, or @FILE; other options override them"
        )
        if name == "autoscale":
            _shift_options(options)
    return whole


def _shift_options(options: argparse.ArgumentParser) -> None:
    length = options.add_mutually_exclusive_group()
    length.add_argument("--once", action="store_true", help="one tick, then end")
    length.add_argument("--shift", type=float, metavar="SECONDS", help="how long to run (default 600)")
    options.add_argument("--interval", type=float, metavar="SECONDS", help="seconds from tick to tick (default 15)")
    options.add_argument("--dry-run", action="store_true", help="decide and explain, write nothing")
    options.add_argument(
        "--namespace", action="append", metavar="NAME", help="only this namespace (may be repeated; default: all)"
    )
    options.add_argument("--selector", metavar="LABELS", help="only resources with these labels")
    options.add_argument(
        "--prometheus-url", metavar="URL", help="default: the environment variable PROMETHEUS_BASE_URL"
    )
    options.add_argument("--lease-name", metavar="NAME", help="the Kubernetes Lease that keeps writers apart")
    options.add_argument("--lease-namespace", metavar="NAME", help="its namespace")


def parameters_from(options: argparse.Namespace) -> BaseModel:
    """The validated parameters. Raises ``ValidationError``, or ``ValueError`` or ``OSError`` for unreadable JSON."""
    text = options.parameters or "{}"
    given = json.loads(Path(text[1:]).read_text(encoding="utf-8") if text.startswith("@") else text)
    if not isinstance(given, dict):
        raise ValueError(f"a JSON object is needed, not {type(given).__name__}")
    if options.flow == "autoscale":
        named: dict[str, Any] = {
            "shift_seconds": 0 if options.once else options.shift,
            "interval_seconds": options.interval,
            "lease_name": options.lease_name,
            "lease_namespace": options.lease_namespace,
            "namespaces": options.namespace,
            "label_selector": options.selector,
            "prometheus_url": options.prometheus_url,
        }
        given |= {name: value for name, value in named.items() if value is not None}
        if options.dry_run:
            fleet = given.get("fleet", {})
            given["fleet"] = {**fleet, "dry_run": True} if isinstance(fleet, dict) else fleet
    return FLOWS[options.flow].model_validate(given)


async def server_problem() -> str | None:
    """Why the Prefect server cannot be used, or ``None``."""
    url = get_current_settings().api.url
    if not url:
        return "PREFECT_API_URL is not set"
    try:
        async with asyncio.timeout(HEALTH_TIMEOUT), get_client() as client:
            error = await client.api_healthcheck()
            if error is None:
                await client.request("GET", "/admin/version")
    except httpx.HTTPStatusError as refused:
        return f"{url} does not let us in ({refused.response.status_code}): set PREFECT_API_AUTH_STRING"
    except Exception as raised:
        error = raised
    return None if error is None else f"nothing answers at {url} ({type(error).__name__}: {error})"


async def run(name: str, parameters: BaseModel) -> int:
    """Run the flow; the exit code."""
    if problem := await server_problem():
        print(NO_SERVER.format(problem=problem), file=sys.stderr)
        return 2
    # After the check, so that a missing server is told in a second.
    flow = getattr(importlib.import_module(f"flows.{name}"), name)
    state = await flow(**dict(parameters), return_state=True)
    print(f"{state.name}: {state.message}" if state.message else state.name)
    return 0 if state.is_completed() else 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, check, run."""
    options = parser().parse_args(arguments)
    try:
        parameters = parameters_from(options)
    except ValidationError as error:
        for problem in error.errors():
            where = ".".join(str(part) for part in problem["loc"]) or "parameters"
            print(f"error: {where}: {problem['msg']}", file=sys.stderr)
        return 2
    except (OSError, ValueError) as error:
        print(f"error: --parameters: {error}", file=sys.stderr)
        return 2
    try:
        return asyncio.run(run(options.flow, parameters))
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
