"""Work pool of Modelyard, and base job templates that let nobody change how runs are started.

A template has no placeholders and no ``env``, which Prefect would merge with a run's. Whoever may create a run chooses
its parameters, but neither the command, nor the working directory, nor the environment.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
from prefect.exceptions import ObjectAlreadyExists

NO_VARIABLES: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}

TEMPLATES: Mapping[str, dict[str, Any]] = {
    "process": {
        "job_configuration": {
            # One interpreter start instead of two. The zombie automation counts on the heartbeat.
            "command": "env PREFECT_FLOWS_HEARTBEAT_FREQUENCY=30 python -m prefect.engine",
            # Paths in parameters are those of the worker's folder, as on the command line.
            "working_dir": ".",
            "stream_output": True,
        },
        "variables": NO_VARIABLES,
    },
}
"""Base job templates by the type of the work pool."""


class OpenWorkPool(ValueError):
    """A work pool whose base job template lets runs choose what is executed; the message says what to do."""


async def create_work_pool(client: PrefectClient, name: str, pool_type: str = "process") -> str:
    """Create the pool or close an existing one with our template; return what was done. Raises ``OpenWorkPool``.

    An existing pool keeps its type. One of a type that Modelyard has no template for must take no variables.
    """
    try:
        await client.create_work_pool(WorkPoolCreate(name=name, type=pool_type, base_job_template=TEMPLATES[pool_type]))
    except ObjectAlreadyExists:
        pool = await client.read_work_pool(name)
        if template := TEMPLATES.get(pool.type):
            await client.update_work_pool(name, WorkPoolUpdate(base_job_template=template))
        elif takes_variables(pool.base_job_template):
            raise OpenWorkPool(
                f"The base job template of the work pool {name} (type {pool.type}) takes variables: whoever may "
                "create a run chooses what is executed. Remove its variables and `env`, or name another --pool"
            ) from None
        return f"exists (type {pool.type}{', paused' if pool.is_paused else ''})"
    return f"created (type {pool_type})"


def takes_variables(template: Mapping[str, Any]) -> bool:
    """Return whether a run's job variables change what is executed."""
    configuration, variables = template.get("job_configuration") or {}, template.get("variables") or {}
    closed = not variables.get("properties") and variables.get("additionalProperties") is False
    return not closed or "{{" in json.dumps(configuration) or "env" in configuration
