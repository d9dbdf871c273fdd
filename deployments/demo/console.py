"""The mechanism of every demonstration: progress, commands with their output, waits, checked claims, exit code.

A demonstration is a ``Script``: an asynchronous context manager that starts what it needs, does what a user would do,
checks the result, and yields suggestions for the reader. ``run_script`` prints the summary of all checks. Exit code 0
means that every check passed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import aiohttp
from rich.console import Console
from rich.markup import escape

from deployments.child import ChildFailed, run_command
from deployments.profile import ROOT
from modelyard.local.binaries import ensure, locate
from modelyard.objects import cut
from modelyard.traffic.clients import RequestFailed, chat_body, send
from modelyard.traffic.traces import Ending

WIDTH = 110
"""Columns where the output is not a terminal."""
LONGEST_WAIT = 600.0
"""Seconds until a wait fails. On a quiet machine each takes less than a minute; this is for a starved one."""
T = TypeVar("T")


class DemonstrationFailed(RuntimeError):
    """A wait timed out; the message names it and the last state."""


class Check(NamedTuple):
    """A claim with its values, and whether it is true."""

    claim: str
    passed: bool


class DemoConsole:
    """Terminal output of a demonstration; ``checks`` holds every claim so far."""

    def __init__(self) -> None:
        self.checks: list[Check] = []
        self._started = time.monotonic()
        self.console = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False, soft_wrap=True)
        self.print = self.console.print

    @property
    def succeeded(self) -> bool:
        return bool(self.checks) and all(check.passed for check in self.checks)

    def say(self, text: str) -> None:
        self.print(f"[dim]{time.monotonic() - self._started:6.1f} s[/]  {text}")

    def heading(self, text: str) -> None:
        self.print()
        self.console.rule(text, align="left")

    def check(self, claim: str, passed: bool) -> None:
        self.checks.append(Check(claim, passed))
        self.print(f"{'[green]✓[/]' if passed else '[bold red]✗ Not true:[/]'} {escape(claim)}")

    def summarize(self) -> None:
        failed = sum(not check.passed for check in self.checks)
        self.heading("Summary")
        for number, (claim, passed) in enumerate(self.checks, 1):
            mark = "[green]passed[/]" if passed else "[bold red]FAILED[/]"
            self.print(f"{number:3}. {mark}  {escape(claim.splitlines()[0])}")
        count = len(self.checks)
        if failed:
            self.print(f"\n[bold red]{failed} of {count} checks failed.[/]")
        elif count:
            self.print(f"\n[bold green]{count} checks passed.[/]")

    async def run(self, *words: str) -> str:
        """Run a command that a user could type; print it and its output. Raises ``ChildFailed``."""
        self._print_command(words)
        program = [sys.executable, "-m", "deployments.command"]
        if words[0] != "modelyard":
            program = [str(ensure([words[0]], self.say)[words[0]])]
        env = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "150"}
        return await run_command(*program, *words[1:], env=env, cwd=ROOT, say=partial(self.print, markup=False))

    def _print_command(self, words: Sequence[str]) -> None:
        lines = ["$"]
        for word in words:
            wraps = word.startswith("--") and len(lines[-1]) > WIDTH / 2
            lines[-1] += " \\" if wraps else f" {shlex.quote(word)}"
            lines += [f"    {shlex.quote(word)}"] if wraps else []
        self.print("\n" + "\n".join(lines), style="bold", markup=False)


async def wait_until(goal: str, look: Callable[[], Awaitable[T]], holds: Callable[[T], object]) -> T:
    """Look until ``holds`` is true; return what was seen last. Raises ``DemonstrationFailed``."""
    deadline = time.monotonic() + LONGEST_WAIT
    while not holds(seen := await look()):
        if time.monotonic() > deadline:
            raise DemonstrationFailed(f"Timed out after {LONGEST_WAIT:g} s waiting until {goal}; last seen: {seen}")
        await asyncio.sleep(0.5)
    return seen


async def ask(session: aiohttp.ClientSession, url: str, model: str, prompt: int, tokens: int) -> str:
    """Stream a completion of so many tokens; return an error, or "" when it is complete."""
    try:
        async with asyncio.timeout(120):
            answer = await send(session, url, chat_body(model, prompt, tokens))
    except (RequestFailed, TimeoutError, aiohttp.ClientError, OSError) as error:
        broken = isinstance(error, RequestFailed) and error.ending is Ending.BROKEN
        problem = cut(str(error) or type(error).__name__, 200)
        return f"{'stream broke off' if broken else 'request failed'}: {problem}"
    return "" if answer.output_tokens == tokens else f"request failed: {answer.output_tokens} of {tokens} tokens"


def kubectl() -> str:
    """Return kubectl as a user of this machine would type it."""
    return "kubectl" if shutil.which("kubectl") else str(locate("kubectl"))


Script = Callable[[DemoConsole], AbstractAsyncContextManager[Sequence[str]]]
"""Prepares, plays and checks; yields what the reader may try next; cleans up."""


def run_script(script: Script, out: Path, target: str, *, keep: bool) -> int:
    """Run a script to its exit code: 0 when every check passed, 1 when one failed, 130 or 143 when interrupted.

    ``target`` of make runs it; with ``keep`` everything stays up until Ctrl-C.
    """
    console = DemoConsole()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    try:
        asyncio.run(_run(script, console, target, keep))
    except KeyboardInterrupt:
        console.print("Stopped.")
        return 130
    except asyncio.CancelledError:  # SIGTERM
        return 143
    except (DemonstrationFailed, ChildFailed) as error:
        console.check(cut(str(error), 2000), False)
        console.summarize()
        console.print(f"Logs: {out}")
    return 0 if console.succeeded else 1


async def _run(script: Script, console: DemoConsole, target: str, keep: bool) -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with script(console) as suggestions:
        console.summarize()
        if not keep:
            console.print(f"\nStopping everything. `make {target} KEEP=1` leaves it running for you to explore.")
            return
        console.print("\n[bold]Try next[/]")
        for line in suggestions:
            console.print(f"  {line}", markup=False)
        console.print("Everything stays up until you press Ctrl-C.")
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
