"""``modelyard bootstrap``: install Modelyard on a Prefect server, then prove that its schedules really run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.actions import DeploymentUpdate
from prefect.exceptions import PrefectHTTPStatusError

from deployments import automations, checks, queues
from deployments.child import ChildFailed, run_command
from deployments.profile import POOL, PREFECT_FILE, WORKER_PROFILE, environment
from deployments.work_pool import OpenWorkPool, RunPods, create_work_pool
from flows.forms import Unseen
from flows.parameters import AutoscaleParameters
from tasks.flow_runs import read_all

AUTOSCALE = "autoscale"
SERVER_TIMEOUT = 60.0
DEPLOY_TIMEOUT = 180.0
SCHEDULE_TIMEOUT = 120.0
"""Seconds within which every schedule must have a planned run."""

Say = Callable[[str], None]


class BootstrapFailed(RuntimeError):
    """The installation or its self-test failed; ``problems`` says why, one sentence each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)


async def bootstrap(
    *,
    pool: str = POOL,
    pool_type: str | None = None,
    pods: RunPods | None = None,
    prefect_file: Path = PREFECT_FILE,
    autoscale: Mapping[str, Any] | None = None,
    without_authentication: bool = False,
    say: Say = print,
) -> None:
    """Check, create the work pool and its queues, deploy, apply the automations, check. Raises ``BootstrapFailed``.

    ``pool_type`` and ``pods`` are those of ``create_work_pool``. ``autoscale`` is merged into the autoscale
    deployments' parameters. ``without_authentication``: a server of another machine may let anybody in.
    """
    if not prefect_file.is_file():
        raise BootstrapFailed([f"--prefect-file: {prefect_file} does not exist"])
    _fail_on(checks.package_problems(checks.installed()) + checks.settings_problems())
    async with get_client() as client:
        _fail_on(await checks.wait_for_server(client, SERVER_TIMEOUT))
        _fail_on(await checks.authentication_problems(client, without_authentication))
        _fail_on(await checks.version_problems(client))
        say(f"Prefect server: {client.api_url}")
        try:
            say(f"work pool {pool}: {await create_work_pool(client, pool, pool_type, pods)}")
        except OpenWorkPool as error:
            raise BootstrapFailed([str(error)]) from None
        except PrefectHTTPStatusError as error:
            raise BootstrapFailed([f"The work pool {pool} cannot be created: {error.response.text[:300]}"]) from None
        for line in await queues.apply(client, pool):
            say(f"work queue {line}")
        with TemporaryDirectory(prefix="modelyard-bootstrap-") as folder:
            file = Path(folder) / prefect_file.name
            write_with_parameters(autoscale or {}, file, prefect_file, pool)
            await deploy(client, file, prefect_file.parent)
        for line in await queues.move_runs(client, pool):
            say(f"work queue {line}")
        names = deployment_names(prefect_file)
        say(f"deployments: {', '.join(sorted(names))}")
        for line in await automations.apply(client):
            say(f"automation {line}")
        _fail_on(await checks.schedule_problems(client, names, SCHEDULE_TIMEOUT))
        say("self-test: every active schedule has planned runs")


async def deploy(client: PrefectClient, prefect_file: Path, folder: Path = PREFECT_FILE.parent) -> None:
    """Deploy everything the file declares, with Prefect's own command run in ``folder``. Raises ``BootstrapFailed``.

    From then on the server refuses a run with a parameter that its flow does not have. Prefect's own form leaves the
    top level open, and such a run would fail at its start.
    """
    try:
        await run_command(
            *(sys.executable, "-m", "deployments.run_module", "prefect", "--no-prompt", "deploy", "--all"),
            *("--prefect-file", str(prefect_file)),
            env=environment(WORKER_PROFILE, {"PREFECT_API_URL": str(client.api_url)}),
            cwd=folder,
            timeout=DEPLOY_TIMEOUT,
        )
    except ChildFailed as error:
        raise BootstrapFailed([str(error)]) from None
    names = deployment_names(prefect_file)
    for deployment in await read_all(client.read_deployments):
        if deployment.name in names:
            form = closed(deployment.parameter_openapi_schema or {})
            await client.update_deployment(deployment.id, DeploymentUpdate(parameter_openapi_schema=form))


def closed(form: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a flow's parameters without room for any other. No form shows those that are ``Unseen``."""
    shown = dict(form.get("properties") or {})
    unseen = {f"^{name}$": shown.pop(name) for name, field in [*shown.items()] if field.get(Unseen.mark)}
    return {**form, "properties": shown, "patternProperties": unseen, "additionalProperties": False}


def read(prefect_file: Path = PREFECT_FILE) -> dict[str, Any]:
    """The file's content."""
    content: dict[str, Any] = yaml.safe_load(prefect_file.read_text(encoding="utf-8"))
    return content


def deployment_names(prefect_file: Path = PREFECT_FILE) -> set[str]:
    """The names of the deployments the file declares."""
    return {str(deployment["name"]) for deployment in read(prefect_file)["deployments"]}


def write_with_parameters(
    changes: Mapping[str, Any], target: Path, prefect_file: Path = PREFECT_FILE, pool: str = POOL
) -> None:
    """Write a copy of the file whose autoscale deployments have ``changes`` merged into their parameters.

    ``pool`` replaces the pool ``modelyard``. The schedule follows the shift's length, unless that is a single tick.
    Raises ``pydantic.ValidationError``.
    """
    content = read(prefect_file)
    for deployment in content["deployments"]:
        place = deployment.get("work_pool") or {}
        if place.get("name") == POOL:
            deployment["work_pool"] = {**place, "name": pool}
        if not deployment["name"].startswith(AUTOSCALE):
            continue
        parameters = _merged(deployment["parameters"], changes)
        if deployment["name"] == AUTOSCALE:
            shift = AutoscaleParameters.model_validate(parameters)
            for schedule in deployment["schedules"] if shift.shift_seconds else []:
                schedule["interval"] = shift.schedule_seconds
        else:
            # One tick stays one tick.
            parameters["shift_seconds"] = 0
            AutoscaleParameters.model_validate(parameters)
        deployment["parameters"] = parameters
    target.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in changes.items():
        before = result.get(key)
        result[key] = _merged(before, value) if isinstance(before, dict) and isinstance(value, Mapping) else value
    return result


def _fail_on(problems: Sequence[str]) -> None:
    if problems:
        raise BootstrapFailed(problems)
