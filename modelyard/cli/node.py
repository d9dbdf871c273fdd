"""``modelyard node``: what runs on a node, as a Job, to bring a model's files there, look after them, take them away.

The contract with whoever makes the Job (it does not change without both sides):

- **Mounts.** The models root is mounted from the host, writable, *at the same path* (``--root``): links and the
  paths that others see are those of the host. The store of the root is ``ROOT/.modelyard``; models are links into
  it.
- **fetch** ``--uri URI --root DIR --path PATH --model KEY``. KEY names the object, as in node reports:
  ``clusterbasemodel.NAME`` or ``NAMESPACE.basemodel.NAME``. PATH, absolute, becomes a link to the files; it must lie
  below ``--below DIR`` (default: the root), which is how a namespace is kept to ``ROOT/NAMESPACE``. ``--uid UID`` is
  the object's: files that an earlier object of its name had are proved again. It can be run
  again at any time and carries on from what is on disk; where everything is there it ends within a second.
  ``pvc://`` and ``local://``: nothing is fetched; PATH (the mounted claim's folder) must exist. ``vendor://``:
  nothing.
- **Options of fetch** are listed by ``--help``. ``--include`` and ``--exclude`` are matched against names within the
  model. ``--policy ReuseIfExists``: a complete copy of this model is enough, the source is not asked. ``--patience``:
  transient errors are retried with growing pauses, and as the source asks, until nothing has moved for so long.
  ``--minimum-rate``: average over five minutes of waiting for the source.
- **Credentials** are never arguments. They come from the environment (``HF_TOKEN``, ``AWS_ACCESS_KEY_ID``,
  ``AWS_SECRET_ACCESS_KEY``, ``AWS_SESSION_TOKEN``, ``GOOGLE_SERVICE_ACCOUNT_KEY``, ``GITHUB_TOKEN``), or from files
  of the same names in ``--credentials DIR`` (a mounted Secret), which win. ``--token-key NAME``: the file of the
  hub's token there (default ``token``). For s3 the usual chain (roles, instance identity) follows, then anonymous
  access.
- **In use.** ``--in-use PATH`` or ``--in-use PATH@RFC3339`` (repeat) for every path below the root that a running
  pod of this node mounts, with the earliest start of those pods. Files that such a pod may see are never removed:
  ``fetch`` links a new revision and keeps the old one until no pod older than the change is named; ``remove``
  refuses (``InUse``).
- **check** ``--root DIR --model KEY``: every file against the manifest (``--quick``: names and sizes only). What is
  damaged is noted in the store, and the next ``fetch`` fetches just that.
- **remove** ``--root DIR --model KEY``: the model's link (unless another model has the same path), then store
  entries that no model refers to. A model that is not there is no error.
- **adapters** ``--list FILE --root DIR --engine URL``: beside an engine, until it is ended: the LoRA adapters that FILE
  lists are fetched below the root and loaded, others unloaded (``modelyard.cli.adapters``).
- **metrics** ``--engine URL --port N``: next to an engine, until it is ended: its metrics page at another port, with
  Kthena's unified names (``modelyard.cli.engine_metrics``).
- **stdout**: one JSON object a line, at most every 5 seconds: ``{"phase": "Listing | Waiting | Downloading |
  Finalizing", "files", "filesTotal", "bytes", "bytesTotal", "bytesPerSecond", "trouble"}``;
  ``trouble`` is what is being tried again. Messages for people go to stderr.
- **Report**, at the end, to ``--report FILE`` (``/dev/termination-log``; at most 4096 bytes) and as the last line of
  stdout: ``{"outcome": "Fetched | Verified | Removed | Failed", "reason", "message", "retryable": bool,
  "retryAfter": seconds or null, "revision", "bytes", "files", "seconds", "fetchedBytes", "fromStore": bool,
  "manifestSha256", "facts": {}}``; what is not known is null. ``facts`` are what detection finds in the files;
  ``factsError`` says why there are none.
- **Exit status**: 0 done; 1 failed and needs a change; 75 failed, trying again may help (for a Job's
  podFailurePolicy); 2 options that cannot be read. SIGTERM ends with 75 and the reason ``Interrupted``.
- **Proxy**: ``HTTPS_PROXY`` and ``NO_PROXY`` (or in lower case) of the environment, for ``https://`` sources.
- **Reasons of Failed**: InvalidURI, UnsupportedSource, PathRefused, PathOccupied, LocalPathNotFound, HostileName,
  NothingToFetch, Unauthorized, Forbidden, NotFound, SourceRefused, ProxyInvalid, ProxyRefused, NamespaceLimit,
  InternalError (1); RateLimited, SourceUnavailable, SourceTooSlow, SourceChanged, DeadlineExceeded, Corrupt,
  DiskPressure, InUse, Damaged, Interrupted, StorageError (75).
"""

from __future__ import annotations

import re
import sys
import time
import traceback
from collections.abc import Callable
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from modelyard.cli.adapters import adapters
from modelyard.cli.engine_metrics import metrics
from modelyard.cli.model_options import options_from, parse_options
from modelyard.cli.options import Terminated, UsageError, raise_at_sigterm
from modelyard.models.download import FetchRequest, Report, node, storage_error
from modelyard.models.sources import Credentials
from modelyard.models.storage import FetchError, unexpected

app = typer.Typer(no_args_is_help=True, help="A model's files on this node: fetch, check, remove. For Jobs.")
app.command()(adapters)
app.command()(metrics)

RETRY = 75
_KEY = r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"


class DownloadPolicy(StrEnum):
    """Whether the source is asked where a complete copy is there."""

    ALWAYS = "AlwaysDownload"
    REUSE = "ReuseIfExists"


def _key(model: str) -> str:
    if not re.fullmatch(_KEY, model):
        raise UsageError(f"--model: {model[:100]!r} is no key of a model; write clusterbasemodel.NAME")
    return model


Root = Annotated[Path, typer.Option(help="The models root, mounted at the path that it has on the host.")]
Model = Annotated[
    str, typer.Option(callback=_key, help="The object: clusterbasemodel.NAME or NAMESPACE.basemodel.NAME.")
]
ReportFile = Annotated[Path | None, typer.Option("--report", help="Where the report goes, besides stdout.")]
Used = Annotated[list[str] | None, typer.Option("--in-use", help="PATH or PATH@RFC3339 that running pods mount.")]


@app.command()
@options_from(FetchRequest, leave_out=("root", "model", "reuse", "in_use", "window", "listing"))
def fetch(
    given: dict[str, Any],
    root: Root,
    model: Model,
    report: ReportFile = None,
    policy: Annotated[DownloadPolicy, typer.Option(help="Whether the source is asked again.")] = DownloadPolicy.ALWAYS,
    in_use: Used = None,
) -> None:
    """Bring a model's files here, verified, and link PATH to them. Carries on from what is there."""
    given |= {"root": root, "model": model, "reuse": policy is DownloadPolicy.REUSE, "in_use": _in_use(in_use)}
    request = parse_options(FetchRequest, given)
    progress = node.Progress(_say)

    def work(told: node.Report) -> None:
        with progress.running():
            node.fetch(request, told, progress)

    _run(work, report, request.credentials)


@app.command()
def check(
    root: Root,
    model: Model,
    quick: Annotated[bool, typer.Option(help="Names and sizes only.")] = False,
    report: ReportFile = None,
) -> None:
    """Compare a model's files with its manifest; the next fetch repairs what is damaged."""
    _run(lambda told: node.check(root, model, told, quick=quick), report)


@app.command()
def remove(root: Root, model: Model, in_use: Used = None, report: ReportFile = None) -> None:
    """Take a model's link away, and the files that no other model refers to."""
    _run(lambda told: node.remove(root, _key(model), _in_use(in_use), told), report)


def _run(work: Callable[[Report], None], file: Path | None, credentials: Path | None = None) -> None:
    told, begin = node.Report(), time.monotonic()
    with raise_at_sigterm():
        try:
            work(told)
        except FetchError as error:
            told.fail(error)
        except (Terminated, KeyboardInterrupt):
            told.fail(FetchError("Interrupted", "ended by a signal; the next run carries on", retryable=True))
        except OSError as error:
            told.fail(storage_error(error, "the models root"))
        except SystemExit:
            raise
        except BaseException as error:  # also a panic of obstore's, which is no Exception
            traceback.print_exception(error)
            remedy = "another storageUri, endpoint, region or key may avoid it"
            told.fail(unexpected(error, Credentials(credentials, {}).values(), remedy))
    told.seconds = round(time.monotonic() - begin, 3)
    body = told.dump()
    if file is not None:
        file.write_text(body, encoding="ascii")
    _say(body)
    if told.outcome == "Failed":
        typer.echo(f"{told.reason}: {told.message}", err=True)
        raise typer.Exit(RETRY if told.retryable else 1)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _in_use(given: list[str] | None) -> dict[str, float | None]:
    """Paths with the earliest start; a path may be named with and without one, and then nothing is known of it."""
    found: dict[str, float | None] = {}
    for text in given or ():
        path, at, moment = text.rpartition("@")
        try:
            start = datetime.fromisoformat(moment).timestamp() if at else None
        except ValueError:
            path, start = text, None
        path = path if at and start is not None else text
        known = found.get(path, start)
        found[path] = None if known is None or start is None else min(known, start)
    return found
