"""A command whose module is imported only when it is wanted: the module's ``app``, a command or a group of them."""

from __future__ import annotations

from importlib import import_module
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand


class LateCommand(TyperCommand):
    """Stands for the ``app`` of another module, and has a help text of its own for the list of commands."""

    module: ClassVar[str]

    @classmethod
    def of(cls, module: str) -> type[LateCommand]:
        """The class that stands for ``module.app``."""
        return type(f"Late_{module.rpartition('.')[2]}", (cls,), {"module": module})

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """That of the real command, which is what then runs."""
        real = typer.main.get_command(import_module(self.module).app)
        return real.make_context(info_name, args, parent, **extra)
