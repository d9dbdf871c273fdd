"""``modelyard autoscale``: the flow ``autoscale`` in the foreground.

A process of its own, because the domain does not import Prefect (the layers point the other way).
"""

from __future__ import annotations

import subprocess
import sys

import typer

CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True}


def autoscale(context: typer.Context) -> None:
    """Run the autoscaling flow here, in the foreground; every option is passed on to it."""
    command = [sys.executable, "-m", "flows.foreground", "autoscale", *context.args]
    raise typer.Exit(subprocess.run(command, check=False).returncode)
