"""What must hold before and after an installation, checked loudly because it fails silently otherwise.

Each function returns sentences; none means all is well.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

import httpx
import prefect
from packaging.specifiers import SpecifierSet
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterId,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import StateType
from prefect.settings import get_current_settings

from deployments.profile import describe_server_problem
from tasks.flow_runs import read_all

CAPS: Mapping[str, tuple[str, str]] = {
    "prefect": (">=3.8.4,<4", "written and tested for these"),
    "fastapi": ("<0.151", "the Prefect 3.8 server does not start with newer ones"),
    "sqlalchemy": ("<2.1", "the Prefect 3.8 scheduler silently creates no runs with newer ones"),
    "pulp": (">=3.3,<4", "4 has a different interface"),
}
"""Packages whose newest versions break Prefect or us, with the reason."""
UNKNOWN = "PREFECT_API_AUTH_STRING is not what the server's PREFECT_SERVER_API_AUTH_STRING is"


def installed() -> dict[str, str]:
    """The versions of the packages of ``CAPS``; absent ones left out."""
    found = {}
    for name in CAPS:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def package_problems(versions: Mapping[str, str]) -> list[str]:
    """Packages that are missing or out of bounds."""
    problems = []
    for name, (bounds, reason) in CAPS.items():
        found = versions.get(name)
        if found is None:
            problems.append(f"{name} is not installed; install {name}{bounds}")
        elif not SpecifierSet(bounds, prereleases=True).contains(found):
            problems.append(f"{name} {found} is installed, {name}{bounds} is needed: {reason}")
    return problems


def settings_problems() -> list[str]:
    """Client settings under which runs would go astray."""
    problem = describe_server_problem(get_current_settings().api.url)
    return [problem] if problem else []


async def authentication_problems(client: PrefectClient, open_allowed: bool = False) -> list[str]:
    """A server that lets us not in, or one of another machine that lets anybody in, unless ``open_allowed``."""
    import aiohttp

    from modelyard.cluster import is_loopback

    asked = f"{str(client.api_url).rstrip('/')}/admin/version"
    try:
        await client.request("GET", "/admin/version")
    except httpx.HTTPStatusError as error:
        if error.response.status_code == 401:
            return [f"{client.api_url} does not let us in: {UNKNOWN}"]
        raise
    if open_allowed or is_loopback(client.api_url.host):
        return []
    stranger = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10), trust_env=True)
    try:
        async with stranger, stranger.get(asked, allow_redirects=False) as answer:
            lets_in = 200 <= answer.status < 300
    except (aiohttp.ClientError, TimeoutError):
        return []
    if not lets_in:
        return []
    return [
        f"{client.api_url} lets anybody in, who could then run any command where the worker runs. Start the server "
        "with PREFECT_SERVER_API_AUTH_STRING, as `modelyard server` does, or say --without-authentication"
    ]


async def version_problems(client: PrefectClient) -> list[str]:
    """A server of another version than this client."""
    answer = await client.request("GET", "/admin/version")
    server = str(answer.json())
    if server == prefect.__version__:
        return []
    return [f"the server runs Prefect {server}, this client {prefect.__version__}; install the same version on both"]


async def wait_for_server(client: PrefectClient, timeout: float) -> list[str]:
    """Wait up to ``timeout`` seconds for the API to answer."""
    deadline = time.monotonic() + timeout
    while (error := await client.api_healthcheck()) is not None:
        if time.monotonic() > deadline:
            return [f"no Prefect server answers at {client.api_url} after {timeout:.0f} s: {error}"]
        await asyncio.sleep(0.5)
    return []


async def schedule_problems(client: PrefectClient, names: set[str], timeout: float) -> list[str]:
    """Return the deployments that are missing or whose active schedule plans no run within ``timeout`` seconds."""
    deployments = [deployment for deployment in await read_all(client.read_deployments) if deployment.name in names]
    problems = [f"the deployment {name} does not exist" for name in sorted(names - {d.name for d in deployments})]
    waiting = {
        deployment.id: deployment.name
        for deployment in deployments
        if not deployment.paused and any(schedule.active for schedule in deployment.schedules)
    }
    deadline = time.monotonic() + timeout
    planned = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.SCHEDULED])))
    while waiting:
        chosen = DeploymentFilter(id=DeploymentFilterId(any_=list(waiting)))
        runs = await client.read_flow_runs(deployment_filter=chosen, flow_run_filter=planned)
        ready = {run.deployment_id for run in runs}
        waiting = {identity: name for identity, name in waiting.items() if identity not in ready}
        if time.monotonic() > deadline:
            break
        await asyncio.sleep(0.5 if waiting else 0)
    return problems + [
        f"the deployment {name} has an active schedule, but no run was planned within {timeout:.0f} s. "
        "Look for ERROR lines of the scheduler in the server's log (its sqlalchemy must be below 2.1)"
        for name in waiting.values()
    ]
