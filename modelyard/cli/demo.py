"""``modelyard demo``: the whole loop on this machine, in a process of its own (it uses Prefect)."""

from __future__ import annotations

import subprocess
import sys

import typer

CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True}


def demo(context: typer.Context) -> None:
    """One model, two accelerators, real traffic, scaled by the deployed flow; about five minutes."""
    raise typer.Exit(
        subprocess.run([sys.executable, "-m", "deployments.demo.run", *context.args], check=False).returncode
    )
