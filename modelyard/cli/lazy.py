"""A subcommand with subcommands of its own, whose module is imported only when one of them is wanted."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any, ClassVar

import typer
from typer.core import TyperGroup


class LazyGroup(TyperGroup):
    """Stands for the ``app`` of another module. Its own help text is what ``--help`` one level up shows."""

    module: ClassVar[str]

    @classmethod
    def of(cls, module: str) -> type[LazyGroup]:
        """The class that stands for ``module.app``."""
        return type(f"Lazy_{module.rpartition('.')[2]}", (cls,), {"module": module})

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of the subcommands."""
        return _group(self.module).list_commands(ctx)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """One subcommand."""
        return _group(self.module).get_command(ctx, cmd_name)


@cache
def _group(module: str) -> TyperGroup:
    group = typer.main.get_command(import_module(module).app)
    assert isinstance(group, TyperGroup)
    return group
