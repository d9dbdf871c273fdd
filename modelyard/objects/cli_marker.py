"""Marks how a field of a model is spelled on the command line, where that is not ``--field-name``."""

from __future__ import annotations


class Cli:
    """Annotation of a field: names of its option, placeholder for its value, help in place of its description.

    ``candidates: Annotated[tuple[Candidate, ...], Cli("--candidate", metavar="RUNTIME=ACCELERATOR@PRICE")]``
    """

    __slots__ = ("help", "metavar", "names")

    def __init__(self, *names: str, metavar: str | None = None, help: str | None = None) -> None:
        self.names, self.metavar, self.help = names, metavar, help
