"""Processes by identity, with real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from modelyard.local.processes import ProcessIdentity, spawn, stop, wait_for_exit


def identity_of(child: subprocess.Popen[bytes]) -> ProcessIdentity:
    found = ProcessIdentity.of(child.pid)
    assert found is not None
    return found


def test_another_process_of_the_same_pid_is_not_ours() -> None:
    mine = ProcessIdentity.of(os.getpid())
    assert mine is not None
    assert mine.alive()
    other = ProcessIdentity(pid=mine.pid, started=mine.started - 1)
    assert not other.alive()
    assert not other.send(signal.SIGKILL)


def test_a_zombie_is_not_alive(tmp_path: Path) -> None:
    child = spawn(["true"], tmp_path / "log")
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert Path(f"/proc/{child.pid}").exists()
    assert ProcessIdentity.of(child.pid) is None
    child.wait()


async def test_the_end_of_a_process_is_noticed_that_is_not_our_child(tmp_path: Path) -> None:
    script = "import subprocess as s; p = s.Popen(['sleep', '1000'], stdout=s.DEVNULL); print(p.pid, flush=True)"
    parent = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=True)  # noqa: ASYNC221
    grandchild = ProcessIdentity.of(int(parent.stdout))
    assert grandchild is not None
    grandchild.send(signal.SIGKILL)
    await wait_for_exit(grandchild)
    assert not grandchild.alive()
    await wait_for_exit(grandchild)


def test_stop_asks_first_and_kills_the_whole_group_then(tmp_path: Path) -> None:
    polite = spawn(["sh", "-c", "trap 'echo bye; exit 0' TERM; echo hi; while :; do sleep 0.05; done"], tmp_path / "a")
    stubborn = spawn(["sh", "-c", "trap '' TERM; sleep 1000 & echo $!; wait; wait"], tmp_path / "b")
    while not ((tmp_path / "a").read_text() and (tmp_path / "b").read_text()):
        pass
    child = ProcessIdentity.of(int((tmp_path / "b").read_text()))
    assert child is not None
    stop([identity_of(polite)], grace=60)
    assert polite.wait() == 0
    assert (tmp_path / "a").read_text() == "hi\nbye\n"
    stop([identity_of(stubborn)], grace=0.3)
    assert stubborn.wait() == -signal.SIGKILL
    asyncio.run(asyncio.wait_for(wait_for_exit(child), 120))  # it is init that buries it
    assert not child.alive()
