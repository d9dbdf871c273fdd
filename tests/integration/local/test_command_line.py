"""`modelyard local` as a user types it: starting and stopping in processes of their own, the rest in this one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import Done, modelyard

from modelyard.local.processes import ProcessIdentity, python_path_environment, wait_all_gone

pytestmark = pytest.mark.integration


class Command:
    def __init__(self, home: Path) -> None:
        self.home = home
        self.env = {**os.environ, **python_path_environment(), "MODELYARD_HOME": str(home), "COLUMNS": "200"}

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "modelyard.cli.main", "local", *arguments]
        return subprocess.run(argv, env=self.env, capture_output=True, text=True, timeout=200)

    def show(self, *arguments: str) -> Done:
        """Run a command that starts nothing."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("MODELYARD_HOME", str(self.home))
            return modelyard("local", *arguments)


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Command]:
    command = Command(tmp_path)
    yield command
    command("down")


def test_up_status_logs_down(local: Command, tmp_path: Path) -> None:
    absent = local.show("status")
    assert absent.code == 1
    assert "never started" in absent.out

    small = ("--component", "etcd", "--component", "apiserver")
    up = local("up", *small)
    assert up.returncode == 0, up.stderr
    assert "apiserver is ready at https://127.0.0.1:" in up.stderr
    path = local.show("kubeconfig").out.strip()
    assert f'export KUBECONFIG="{path}"' in up.stdout
    assert oct(Path(path).stat().st_mode & 0o777) == "0o600"

    other = local("up", *small, "--scrape-interval", "1s")
    assert other.returncode == 0
    assert "with other settings" in other.stderr

    table = local.show("status")
    assert table.code == 0, table.out
    assert "healthy" in table.out
    overview = json.loads(local.show("status", "-o", "json").out)
    assert overview["healthy"] is True
    assert [row["name"] for row in overview["components"]] == ["etcd", "apiserver"]
    assert all(row["memory_bytes"] > 1e6 for row in overview["components"])
    assert local("logs", "etcd", "--lines", "1").stdout.count("\n") == 1
    unknown = local.show("logs", "nothing")
    assert unknown.code == 1
    assert "components are etcd" in unknown.err

    # Without its supervisor the cluster is reported as not healthy, and `down` still stops all of it.
    supervisor = ProcessIdentity.of(overview["supervisor_pid"])
    children = [ProcessIdentity.of(row["pid"]) for row in overview["components"]]
    assert supervisor is not None
    supervisor.send(signal.SIGKILL)
    assert wait_all_gone([supervisor], 60)
    orphaned = local.show("status")
    assert orphaned.code == 1
    assert "supervisor was killed" in orphaned.out
    down = local("down")
    assert down.returncode == 0, down.stderr
    assert not any(child is not None and child.alive() for child in children)
    assert not (tmp_path / "local" / "default").exists()
    assert "there is no local cluster" in local.show("down").out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("up", "--name", "A B"), "local cluster name"),
        (("up", "--component", "agent"), "agent needs apiserver"),
        (("up", "--node", "h100"), "COUNTxGPUS"),
        (("up", "--scrape-target", "http://x"), "is not host:port"),
        (("kubeconfig", "--name", "absent"), "modelyard local up"),
    ],
)
def test_mistakes_are_explained(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    done = Command(tmp_path).show(*arguments)
    assert done.code == 1
    assert said in done.err
    assert "Traceback" not in done.err


def test_a_component_that_cannot_start_is_shown_with_its_log(local: Command, tmp_path: Path) -> None:
    broken = tmp_path / "bin"
    broken.mkdir()
    script = broken / "etcd"
    script.write_text(
        "#!/bin/sh\n"
        '[ "$1" = --version ] && echo 3.4.0 && exit\n'
        '[ "$1" = --help ] && exit\n'
        "echo disk on fire >&2; exit 7\n"
    )
    script.chmod(0o755)
    local.env["KUBEBUILDER_ASSETS"] = str(broken)
    done = local("up", "--component", "etcd")
    assert done.returncode == 1
    assert "etcd" in done.stderr
    assert "exit code 7" in done.stderr
    assert "disk on fire" in done.stderr
