"""What several commands have in common: options spelled the same everywhere, forms of output, unusable command lines.

Exit codes: 0 done, 1 failed, 2 the command line or the parameters cannot be used. Of commands that explain: 0 it is
explained, 1 the object or its namespace does not exist, or it is refused.
"""

from __future__ import annotations

import difflib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError
    from rich.console import Console
    from rich.table import Table

    from modelyard.cluster import Cluster

CONTEXT = "MODELYARD_CONTEXT"
"""The variable with the kubeconfig context, for flows and child processes too."""
RunFlow = Callable[[str, dict[str, Any]], None]
"""Runs a flow by its name and parameters in this terminal, and ends the command with its exit code."""
PAIR = "KEY=VALUE"
WIDE = 10_000
"""Columns where nobody is watching: a pipe has no width, one line per row is what grep wants."""


class UsageError(ValueError):
    """A command line that cannot be used: ``problems``, each of which names the option and says what can be written."""

    exit_code = 2

    def __init__(self, *problems: str) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class Terminated(BaseException):
    """SIGTERM has arrived."""


@contextmanager
def raise_at_sigterm() -> Iterator[None]:
    """Raise ``Terminated`` in the block where SIGTERM arrives, so that a Job can still write its report."""

    def end(_number: int, _frame: FrameType | None) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class NoSuchNamespace(RuntimeError):
    """A namespace that was named does not exist; the message says which do."""


async def check_namespaces(cluster: Cluster, names: Iterable[str]) -> None:
    """Raise ``NoSuchNamespace`` where one of these does not exist. Who may not read namespaces is not told."""
    from modelyard.cluster import ClusterError, Forbidden, NotFound
    from modelyard.objects import NAMESPACES, few

    for name in filter(None, names):
        try:
            await cluster.get(NAMESPACES, name)
        except Forbidden:
            return
        except NotFound:
            try:
                existing = [one["metadata"]["name"] for one in await cluster.list(NAMESPACES)]
            except ClusterError:
                existing = []
            close = difflib.get_close_matches(name, existing, n=1)
            remedy = f"did you mean {close[0]}?" if close else f"there are {', '.join(few(sorted(existing)))}"
            raise NoSuchNamespace(f"namespace {name} does not exist; {remedy}") from None


class Output(StrEnum):
    """How to print."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


def check_url(option: typer.CallbackParam, url: str | None) -> str | None:
    """Refuse a value that is not a URL, with the name of its option."""
    if url:
        from modelyard.objects import describe_url_problem

        if problem := describe_url_problem(url):
            raise UsageError(f"{option.opts[0]} {problem}")
    return url


def _choose_context(context: str | None) -> str | None:
    if context:
        os.environ[CONTEXT] = context
    return context


Context = Annotated[
    str | None,
    typer.Option(
        "--context", envvar=CONTEXT, callback=_choose_context, help="Context of the kubeconfig; unset: the current one."
    ),
]
Files = Annotated[
    list[Path] | None,
    typer.Option(
        "-f", "--filename", help="Manifest file or folder, '-' for standard input; repeat. No cluster is contacted."
    ),
]
Form = Annotated[Output, typer.Option("-o", "--output", help="How to print.")]
Controller = Annotated[
    str, typer.Option("--controller-namespace", help="Namespace of the controller, with its settings and records.")
]
Namespaces = Annotated[list[str] | None, typer.Option("-n", "--namespace", help="Only this namespace; repeat.")]
Selector = Annotated[
    str, typer.Option("-l", "--selector", help="Only VariantAutoscalings and bindings with these labels.")
]
PrometheusUrl = Annotated[
    str | None,
    typer.Option("--prometheus", callback=check_url, help="URL of Prometheus; unset: PROMETHEUS_BASE_URL."),
]
Settings = Annotated[
    Path | None, typer.Option("--settings", help="YAML file with fleet settings (the flow's parameter 'fleet').")
]


def pairs(option: str, texts: Iterable[str] | None, metavar: str = PAIR) -> dict[str, str]:
    """Return the mapping that ``KEY=VALUE`` texts are. Raises ``UsageError``, which names the option."""
    values = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise UsageError(f"{option} {text}: write {metavar}")
        values[key] = value
    return values


def json_object(text: str, option: str) -> dict[str, Any]:
    """The object in JSON text, or in the file that ``@FILE`` names. Raises ``UsageError`` that names the option."""
    try:
        value = json.loads(Path(text[1:]).read_text(encoding="utf-8") if text.startswith("@") else text)
    except (OSError, ValueError) as error:
        raise UsageError(f"{option}: {error}; write a JSON object, or @FILE with one in it") from error
    if not isinstance(value, dict):
        raise UsageError(f"{option}: a JSON object is needed, not {type(value).__name__}")
    return value


def faults(error: ValidationError, model: type[BaseModel]) -> list[str]:
    """The fields of the model that are wrong, a sentence each; of fields that do not agree the sentence alone."""
    from modelyard.resources import explain

    return [f"{field}: {text}".removeprefix("object: ") for field, text in explain(model, error)]


def print_document(text: str, output: str) -> None:
    """Print a JSON document, as YAML if that is wanted."""
    if output == Output.YAML:
        import orjson
        import yaml

        text = yaml.safe_dump(orjson.loads(text), sort_keys=False, allow_unicode=True).rstrip("\n")
    typer.echo(text)


def console() -> Console:
    """Prints everything as it is: messages hold brackets and colons that are no markup."""
    from rich.console import Console

    watched = sys.stdout.isatty()
    return Console(markup=False, emoji=False, highlight=False, soft_wrap=not watched, width=None if watched else WIDE)


def grid(*columns: str) -> Table:
    """A table without lines, as kubectl prints them."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def warn(text: str, kind: str = "warning") -> None:
    """Tell it beside the output; ``kind`` error: it is wrong. What others wrote of it moves no cursor."""
    from modelyard.objects import printable

    text = "\n".join(map(printable, text.split("\n")))
    typer.secho(f"{kind}: {text}", fg=typer.colors.RED if kind == "error" else typer.colors.YELLOW, err=True)
