"""A built wheel in an environment of its own, next to a Prefect project whose folders have the same names."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from uuid import uuid4

import pytest
from prefect.client.orchestration import PrefectClient

from deployments.profile import ROOT
from deployments.server import PrefectServer
from deployments.work_pool import create_work_pool
from modelyard.cli.start import PACKAGES

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The virtual environment; its dependencies are those of the development environment."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("modelyard", *PACKAGES):
        shutil.copytree(ROOT / name, folder / "source" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "source")
    environment = folder / "environment"

    def uv(*arguments: object) -> None:
        command = [Path(sys.executable).with_name("uv"), *arguments]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=250)
        assert done.returncode == 0, done.stderr

    uv("build", "--wheel", "--out-dir", folder, folder / "source")
    (wheel,) = folder.glob("*.whl")
    uv("venv", "--python", sys.executable, environment)
    uv("pip", "install", "--no-deps", "--python", environment / "bin" / "python", wheel)
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"])
    return environment


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A user's project, which notices when it is imported."""
    for name in PACKAGES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('the shop was imported')\n")
    return tmp_path


def variables(environment: Path, **more: str) -> dict[str, str]:
    """Return variables of a shell in which the environment is active."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    return {**kept, "PATH": f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}", **more}


def modelyard(environment: Path, folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = [str(environment / "bin" / "modelyard"), *arguments]
    env = variables(environment, **more)
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=250)


def test_the_command_is_not_disturbed_by_folders_of_the_same_names(environment: Path, shop: Path) -> None:
    done = modelyard(environment, shop, "run", "sideways")
    assert done.returncode == 2
    assert "no such flow; there are autoscale" in done.stderr


def test_packages_of_another_project_in_front_of_ours_are_named(environment: Path, shop: Path) -> None:
    done = modelyard(environment, shop, "--version", PYTHONPATH=str(shop))
    assert done.returncode == 1
    assert f"flows ({shop}/flows/__init__.py), tasks ({shop}/tasks/__init__.py)" in done.stderr
    assert "install modelyard into an environment of its own" in done.stderr


def test_a_package_that_another_wheel_has_overwritten_is_named(environment: Path, shop: Path) -> None:
    (ours,) = environment.glob("lib/python*/site-packages/tasks/__init__.py")
    text = ours.read_bytes()
    ours.write_bytes((shop / "tasks" / "__init__.py").read_bytes())
    try:
        done = modelyard(environment, shop, "--version")
    finally:
        ours.write_bytes(text)
    assert done.returncode == 1
    assert f"in its place: tasks ({ours})" in done.stderr


async def test_a_worker_in_a_folder_of_the_same_names_runs_our_flow(
    environment: Path, shop: Path, client: PrefectClient, prefect_server: PrefectServer
) -> None:
    """Prefect's own worker with our pool's command. The run ends at once, with an error that only our flow has."""
    pool = f"wheel-{uuid4().hex[:8]}"
    await create_work_pool(client, pool)
    flow = await client.create_flow_from_name("replay")
    deployment = await client.create_deployment(flow, pool, entrypoint="flows.replay.replay", work_pool_name=pool)
    given = {"manifests": ["/elsewhere/manifests.yaml"], "trace": "trace.csv"}
    run = await client.create_flow_run_from_deployment(deployment, parameters=given)
    worker = await asyncio.create_subprocess_exec(
        *(
            "python",
            "-P",
            "-m",
            "prefect",
            "worker",
            "start",
            "--pool",
            pool,
            "--run-once",
            "--install-policy",
            "never",
        ),
        cwd=shop,
        env=variables(environment, PREFECT_API_URL=prefect_server.api_url, PREFECT_HOME=str(shop / "home")),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    printed, _ = await worker.communicate()
    state = (await client.read_flow_run(run.id)).state
    assert state is not None
    assert "'/elsewhere/manifests.yaml' is outside of the folders" in str(state.message), printed.decode()
