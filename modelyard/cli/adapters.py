"""``modelyard node adapters``: beside an engine, keeps its LoRA adapters as a list has them.

The list is a mounted file (a ConfigMap), so that a pod that starts anew needs nobody to tell it. Adapters are fetched,
loaded and unloaded over the engine's own API, which is asked for what it has: nothing is remembered here.
"""

from __future__ import annotations

import posixpath
import time
from pathlib import Path
from typing import Annotated

import typer

from modelyard.cli.options import check_url

TIMEOUT = 300.0
"""Seconds that one request to the engine may take: it reads the adapter meanwhile."""


def adapters(
    listed: Annotated[Path, typer.Option("--list", help="File with the adapters: name, source and path of each.")],
    root: Annotated[Path, typer.Option(help="The folder below which adapters are fetched.")],
    engine: Annotated[str, typer.Option(callback=check_url, help="URL of the engine.")],
    every: Annotated[float, typer.Option(min=1, help="Seconds between two looks.")] = 5.0,
    once: Annotated[bool, typer.Option(help="One look; exit code 1 if something failed.")] = False,
) -> None:
    """Keep the LoRA adapters of the engine beside as a list has them, until ended."""
    said: list[str] = []
    while True:
        failures = converge(listed, root, engine.rstrip("/"))
        if failures != said:
            for one in failures:
                typer.echo(one, err=True)
        said = failures
        if once:
            raise typer.Exit(1 if failures else 0)
        time.sleep(every)


def converge(listed: Path, root: Path, engine: str) -> list[str]:
    """One look: what is missing is fetched and loaded, what is too much unloaded. What failed; it is tried again."""
    from urllib3.exceptions import HTTPError

    from modelyard.metrics.vocabulary import MODELS_PATH
    from modelyard.models.download import node
    from modelyard.models.sources import HttpPool
    from modelyard.models.storage import FetchError
    from modelyard.workloads.kthena import adapters as decided

    failures: list[str] = []
    try:
        http = HttpPool(public=False, connect=5, read=TIMEOUT)
        wanted = decided.wanted(listed.read_text("utf-8") if listed.exists() else "[]", str(root))
        answer = http.request("GET", f"{engine}{MODELS_PATH}", timeout=10)
        there = decided.loaded(answer.json()) if answer.status == 200 else None
    except (OSError, ValueError, FetchError, HTTPError) as error:
        return [f"cannot look: {type(error).__name__}: {str(error)[:500]}"]
    if there is None:
        return [f"the engine's list of models is not there: status {answer.status}"]
    for call in decided.calls(wanted, there):
        name = call.body["lora_name"]
        try:
            if (files := call.fetch) is not None:
                key = f"model.{posixpath.basename(files.path)}"
                request = node.FetchRequest(files.source, root, files.path, key, reuse=True)
                node.fetch(request, node.Report(), node.Progress(lambda line: None))
            answer = http.request("POST", f"{engine}{call.path}", json=dict(call.body))
        except (OSError, FetchError, HTTPError) as error:
            failures.append(f"adapter {name}: {str(error)[:500] or type(error).__name__}")
            continue
        if answer.status >= 300:
            failures.append(f"adapter {name}: the engine answers {answer.status}: {answer.data[:200]!r}")
        else:
            typer.echo(f"adapter {name}: {posixpath.basename(call.path)}")
    return failures
