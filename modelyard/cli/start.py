"""The ``modelyard`` console script: starts the command once its packages are certain to be Modelyard's.

The project's packages have common names. Your Prefect project may have ``flows`` or ``tasks``, too. Python imports the
first on its search path, and in one environment the project installed last overwrites the other's files.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("flows", "tasks", "deployments")
"""Installed next to ``modelyard``; the docstring of each names Modelyard."""


def foreign_packages() -> dict[str, str]:
    """Return the file or folder of each package that is not Modelyard's."""
    home, foreign = Path(__file__).resolve().parents[2], {}
    for name in PACKAGES:
        spec, file = find_spec(name), home / name / "__init__.py"
        place = spec and (spec.origin or next(iter(spec.submodule_search_locations or ()), None))
        if not place or Path(place).resolve() != file or "Modelyard" not in file.read_text(encoding="utf-8"):
            foreign[name] = str(place or "not installed")
    return foreign


def main() -> None:
    """Run the command, or name the packages that are not Modelyard's and end with code 1."""
    if foreign := foreign_packages():
        sys.exit(
            "error: cannot start modelyard: packages of another project are in its place: "
            f"{', '.join(f'{name} ({place})' for name, place in foreign.items())}; install modelyard into an "
            "environment of its own, and keep folders of other projects out of PYTHONPATH"
        )
    import_module("deployments.command").main()


if __name__ == "__main__":
    main()
