"""One Prefect server for all tests of this folder, with the product's profile and a password.

Settings of this process point to it.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import prefect
import pytest
from prefect.client.orchestration import PrefectClient, get_client
from prefect.logging.handlers import APILogHandler
from prefect.settings import (
    PREFECT_API_AUTH_STRING,
    PREFECT_API_URL,
    PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
    PREFECT_HOME,
    PREFECT_SERVER_ALLOW_EPHEMERAL_MODE,
    temporary_settings,
)
from prefect_support import Parameters

from deployments.server import AUTHENTICATION, PrefectServer
from flows.parameters import AutoscaleParameters

HERE = Path(__file__).parent
PASSWORD = "modelyard:only-for-tests"


@pytest.fixture(scope="session")
def prefect_server(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[PrefectServer]:
    """The server; migrating its database takes as long as starting it, so the migrated file is kept for next time."""
    home = tmp_path_factory.mktemp("prefect")
    migrated = request.config.cache.mkdir("prefect") / f"migrated-{prefect.__version__}.db"
    if migrated.exists():
        shutil.copy(migrated, home / "prefect.db")
    services = "PREFECT_SERVER_SERVICES"
    hasty = {
        f"{services}_SCHEDULER_RECENT_DEPLOYMENTS_LOOP_SECONDS": "1",
        f"{services}_LATE_RUNS_LOOP_SECONDS": "1",
        f"{services}_LATE_RUNS_AFTER_SECONDS": "1",
        AUTHENTICATION: PASSWORD,
    }
    server = PrefectServer(home, extra=hasty)
    with server:
        if not migrated.exists():
            whole = home / "migrated.db"
            with sqlite3.connect(home / "prefect.db") as source, sqlite3.connect(whole) as target:
                source.backup(target)
            beside = migrated.with_suffix(f".{os.getpid()}")
            shutil.copy(whole, beside)
            beside.replace(migrated)  # other workers take it as soon as it is there
        yield server


@pytest.fixture(scope="session", autouse=True)
async def client_settings(prefect_server: PrefectServer) -> AsyncIterator[None]:
    """This process, and what it starts, talk to the server."""
    # Child processes (deploy, worker) must find the recording flow.
    search = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH", "")]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", search)
        patch.setenv("DO_NOT_TRACK", "1")
        patch.setenv("PREFECT_API_AUTH_STRING", PASSWORD)
        with temporary_settings(
            {
                PREFECT_API_URL: prefect_server.api_url,
                PREFECT_API_AUTH_STRING: PASSWORD,
                PREFECT_HOME: prefect_server.home,
                PREFECT_SERVER_ALLOW_EPHEMERAL_MODE: False,
                PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None,
            }
        ):
            yield
            await APILogHandler.aflush()


@pytest.fixture
async def client() -> AsyncIterator[PrefectClient]:
    async with get_client() as client:
        yield client


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """Where the recording loop of this test writes."""
    return tmp_path / "record.jsonl"


@pytest.fixture
def parameters(record: Path) -> Parameters:
    """Makes parameters of a short shift; keywords without a field of that name go to the recording loop."""

    def make(**given: Any) -> AutoscaleParameters:
        fields = {name: given.pop(name) for name in list(given) if name in AutoscaleParameters.model_fields}
        selector = ",".join(f"{name}={value}" for name, value in {"record": record, **given}.items())
        return AutoscaleParameters.model_validate(
            {
                "interval_seconds": 0.25,
                "shift_seconds": 2,
                "early_end_seconds": 0.1,
                "lease_name": "shared",
                **fields,
                "label_selector": selector,
            }
        )

    return make
