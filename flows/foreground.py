"""``python -m flows.autoscale``: one shift in this terminal, recorded by the Prefect server at PREFECT_API_URL.

Exit code 0: the run completed; 1: it did not; 2: it could not begin (parameters, or no Prefect server).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prefect import get_client
from prefect.settings import get_current_settings
from pydantic import ValidationError

from flows.parameters import AutoscaleParameters

NO_SERVER = """error: no Prefect server: {problem}.
Start one with `python -m deployments.server` (it prints the address), or point PREFECT_API_URL at yours,
for example PREFECT_API_URL=http://127.0.0.1:4200/api"""
HEALTH_TIMEOUT = 10.0


def parser() -> argparse.ArgumentParser:
    """The options; each stands for a field of the flow's parameters."""
    options = argparse.ArgumentParser(
        prog="modelyard autoscale", description="Run one shift of the autoscaling loop in the foreground."
    )
    options.add_argument(
        "--parameters", metavar="JSON", help="the flow's parameters as JSON, or @FILE; other options override them"
    )
    length = options.add_mutually_exclusive_group()
    length.add_argument("--once", action="store_true", help="one tick, then end")
    length.add_argument("--shift", type=float, metavar="SECONDS", help="how long to run (default 300)")
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
    return options


def parameters_from(options: argparse.Namespace) -> AutoscaleParameters:
    """The validated parameters. Raises ``ValidationError``, or ``ValueError`` or ``OSError`` for unreadable JSON."""
    given: dict[str, Any] = {}
    if options.parameters:
        text = options.parameters
        given = json.loads(Path(text[1:]).read_text(encoding="utf-8") if text.startswith("@") else text)
        if not isinstance(given, dict):
            raise ValueError(f"a JSON object is needed, not {type(given).__name__}")
    loop = given.setdefault("loop", {})
    if not isinstance(loop, dict) or not isinstance(loop.get("fleet", {}), dict):
        raise ValueError("loop must be a JSON object, and so must its fleet")
    shift = 0 if options.once else options.shift
    _override(
        given,
        shift_seconds=shift,
        interval_seconds=options.interval,
        lease_name=options.lease_name,
        lease_namespace=options.lease_namespace,
    )
    _override(
        loop, namespaces=options.namespace, label_selector=options.selector, prometheus_url=options.prometheus_url
    )
    if options.dry_run:
        loop.setdefault("fleet", {})["dry_run"] = True
    return AutoscaleParameters.model_validate(given)


def _override(target: dict[str, Any], **values: Any) -> None:
    target.update({name: value for name, value in values.items() if value is not None})


async def server_problem() -> str | None:
    """Why the Prefect server cannot be used, or ``None``."""
    url = get_current_settings().api.url
    if not url:
        return "PREFECT_API_URL is not set"
    try:
        async with asyncio.timeout(HEALTH_TIMEOUT), get_client() as client:
            error = await client.api_healthcheck()
    except Exception as raised:
        error = raised
    return None if error is None else f"nothing answers at {url} ({type(error).__name__}: {error})"


async def run(parameters: AutoscaleParameters) -> int:
    """Run the flow; the exit code."""
    if problem := await server_problem():
        print(NO_SERVER.format(problem=problem), file=sys.stderr)
        return 2
    # After the check, so that a missing server is told in a second.
    from flows.autoscale import autoscale

    state = await autoscale(parameters, return_state=True)
    print(f"{state.name}: {state.message}" if state.message else state.name)
    return 0 if state.is_completed() else 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, check, run."""
    try:
        parameters = parameters_from(parser().parse_args(arguments))
    except ValidationError as error:
        for problem in error.errors():
            where = ".".join(str(part) for part in problem["loc"]) or "parameters"
            print(f"error: {where}: {problem['msg']}", file=sys.stderr)
        return 2
    except (OSError, ValueError) as error:
        print(f"error: --parameters: {error}", file=sys.stderr)
        return 2
    try:
        return asyncio.run(run(parameters))
    except KeyboardInterrupt:
        return 130
