"""Only public names of Prefect are used, so that its minor releases break nothing (ruff's SLF001 has attributes)."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect.workers.base import BaseJobConfiguration

ROOT = Path(__file__).resolve().parents[3]
MODULES = sorted(
    path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
    for package in ("flows", "tasks", "deployments")
    for path in (ROOT / package).rglob("*.py")
)
PRIVATE = """
import prefect._internal.compatibility
from prefect.workers.base import BaseWorker, _is_transient_api_error
from prefect.cli._worker_utils import lookup
from prefect.flows import Flow
"""


def private_imports(source: str) -> Iterator[str]:
    """Yield the private names of Prefect that a module imports."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name for name in names if name.startswith("prefect.") and "._" in name)


def private_overrides(kind: type) -> Iterator[str]:
    """Yield the private names of Prefect's classes that a class of ours defines."""
    for base in kind.__mro__[1:]:
        if base.__module__.partition(".")[0] == "prefect":
            common = vars(kind).keys() & vars(base).keys()
            yield from (
                f"{base.__qualname__}.{name}"
                for name in common
                if name[0] == "_" and name[-2:] != "__" and name != "_abc_impl"
            )


def test_a_private_name_would_be_noticed() -> None:
    class Overriding(BaseJobConfiguration):
        def is_using_a_runner(self) -> bool:
            return False

        @staticmethod
        def _base_environment() -> dict[str, str]:
            return {}

    assert list(private_imports(PRIVATE)) == [
        "prefect._internal.compatibility",
        "prefect.workers.base._is_transient_api_error",
        "prefect.cli._worker_utils.lookup",
    ]
    assert list(private_overrides(Overriding)) == ["BaseJobConfiguration._base_environment"]


@pytest.mark.parametrize("name", MODULES)
def test_a_module_uses_public_names_of_prefect_alone(name: str) -> None:
    module = importlib.import_module(name)
    assert list(private_imports(inspect.getsource(module))) == []
    ours = [kind for _, kind in inspect.getmembers(module, inspect.isclass) if kind.__module__ == name]
    assert [override for kind in ours for override in private_overrides(kind)] == []
