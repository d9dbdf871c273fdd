"""Runs a module as ``python -m`` does, with this project's packages imported first.

Prefect puts the working directory in front of Python's search path while it imports a flow. There may be a project with
folders ``flows`` and ``tasks`` of its own. What is imported already is not looked for.
"""

from __future__ import annotations

import runpy
import sys

import flows  # noqa: F401
import tasks  # noqa: F401

if __name__ == "__main__":
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
