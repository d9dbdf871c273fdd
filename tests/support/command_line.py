"""The ``modelyard`` command, run in this process: starting one takes longer than most of what commands do."""

from __future__ import annotations

import asyncio
import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass

import pytest

from deployments.command import main
from modelyard.cli.options import CONTEXT


@dataclass(frozen=True)
class Done:
    """How a command line ended, and what it said."""

    code: int
    out: str
    err: str


def modelyard(*arguments: object) -> Done:
    """What the console script does with these arguments."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["modelyard", *map(str, arguments)])
        patch.setenv("COLUMNS", "200")
        patch.setenv(CONTEXT, "")  # which a command sets for what it calls
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
    return Done(code, out.getvalue(), err.getvalue())


async def modelyard_beside(*arguments: object) -> Done:
    """The same while the event loop goes on with what is open on it."""
    return await asyncio.to_thread(modelyard, *arguments)
