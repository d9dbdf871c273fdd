"""What a Job does with a model on its node: fetch, check, remove; progress while it goes on, a report at the end.

The contract, as its caller sees it, is in ``modelyard.cli.node``.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from modelyard import __version__
from modelyard.models.download.disk_space import DiskReservation
from modelyard.models.download.fetch import Download
from modelyard.models.download.filters import FileRules, choose
from modelyard.models.download.pace import Limits, Pace
from modelyard.models.download.source_access import list_files, prove_access
from modelyard.models.download.store import HOME, FileManifest, InUse, ModelRecord, NodeStore, digest_of
from modelyard.models.sources import Credentials, ModelSource, open_source
from modelyard.models.storage import ClaimFolder, FetchError, LocalFolder, VendorModel, parse
from modelyard.objects import TERMINATION_MESSAGE_BYTES, Cli, counted, printable

LONGEST_WAIT = 86_400.0
"""Seconds: no source is left alone for longer, whatever it asks for."""
EVERY = 5.0
"""Seconds between two lines of progress."""
RELISTED = 3
"""How often a source that changes while it is read is listed anew."""
_REFUSALS = frozenset({"Unauthorized", "Forbidden", "NotFound", "SourceRefused", "NamespaceLimit"})
"""Reasons why a model may not have an entry."""


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """One model to be brought to this node."""

    uri: Annotated[str, Field(description="URI of the files (spec.storage.storageUri)")]
    root: Path
    path: Annotated[str, Field(description="path that becomes a link to the files; absolute, below the root")]
    model: str
    below: Annotated[str | None, Field(description="folder that --path must be in; unset: the root")] = None
    endpoint: Annotated[str | None, Field(description="another address of the source")] = None
    region: Annotated[str | None, Field(description="region of a bucket")] = None
    credentials: Annotated[Path | None, Field(description="folder with a file for each credential")] = None
    token_key: Annotated[str, Field(description="name of the hub's token in that folder")] = "token"
    rules: FileRules = field(default_factory=FileRules)
    reuse: bool = False
    in_use: InUse = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    public: Annotated[bool, Cli("--public"), Field(description="connect to addresses of the internet only")] = False
    style: Annotated[
        str | None,
        Cli("--addressing-style"),
        Field(description="addressing of a bucket: virtual (in the host's name) or path; unset: as the store wants"),
    ] = None
    uid: Annotated[str, Field(description="uid of the object; files of an earlier object are proved again")] = ""
    """An earlier object of its name may have been another tenant's."""


@dataclass(slots=True)
class Report:
    """How it ended. None: not known."""

    outcome: str = "Failed"
    reason: str | None = None
    message: str = ""
    retryable: bool = False
    retryAfter: float | None = None
    revision: str | None = None
    bytes: int | None = None
    files: int | None = None
    seconds: float = 0.0
    fetchedBytes: int = 0
    fromStore: bool = False
    weights: str = ""
    manifestSha256: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    factsError: str | None = None

    def fail(self, error: FetchError) -> None:
        self.outcome, self.reason, self.message = "Failed", error.reason, printable(str(error))
        self.retryable = error.retryable
        self.retryAfter = None if error.retry_after is None else min(error.retry_after, LONGEST_WAIT)

    def dump(self) -> str:
        """One line of JSON (ASCII), cut to what a termination message holds: facts go first, then the message."""
        body = asdict(self)
        if len(json.dumps(body)) > TERMINATION_MESSAGE_BYTES:
            body |= {"facts": {}, "factsError": "too large for a report"}
        while len(text := json.dumps(body)) > TERMINATION_MESSAGE_BYTES:
            body["message"] = body["message"][: len(body["message"]) // 2] + "…"
        return text


class Progress:
    """Says every few seconds how far it is, from a thread of its own."""

    def __init__(self, say: Callable[[str], None], every: float = EVERY) -> None:
        self._say, self._every = say, every
        self._phase, self._pace = "Listing", Pace(Limits())
        self._files = self._bytes = 0
        self._end = threading.Event()

    def phase(self, name: str) -> None:
        self._phase = name

    def over(self, pace: Pace, files: int, size: int) -> None:
        self._pace, self._files, self._bytes = pace, files, size

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self._run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._end.set()
            thread.join()

    def _run(self) -> None:
        last, at = 0, time.monotonic()
        while not self._end.wait(self._every):
            pace, now = self._pace, time.monotonic()
            fetched = pace.fetched
            line = {
                "phase": self._phase,
                "files": pace.files,
                "filesTotal": self._files,
                "bytes": pace.bytes,
                "bytesTotal": self._bytes,
                "bytesPerSecond": round(max(0, fetched - last) / (now - at)),
                "trouble": pace.trouble,
            }
            last, at = fetched, now
            self._say(json.dumps(line))


def fetch(request: FetchRequest, report: Report, progress: Progress) -> None:
    """Fills in the report. FetchError where it cannot be done."""
    uri = parse(request.uri)
    if isinstance(uri, VendorModel):
        report.outcome, report.message = "Fetched", f"{uri} is brought by its vendor"
        return
    if isinstance(uri, (LocalFolder, ClaimFolder)):
        _look(uri, request, report)
        return
    with NodeStore(request.root) as store:
        path = store.relative(request.path, request.below)
        record = ModelRecord(request.model, path, request.uri, rules=request.rules.digest, uid=request.uid)
        with store.locked():
            before = store.record(request.model)
            if before is not None and before.uid not in ("", request.uid):
                store.disown(before, request.uid, request.in_use, time.time())
                before = store.record(request.model)
        if request.reuse and before and before.entry and before.has_content_of(record):
            manifest = store.manifest(before.entry)
            if manifest is not None and not store.missing(before.entry, manifest):
                report.weights = before.weights
                _done(report, manifest, store, before.entry, "a complete copy is there, and may be used again")
                return
        source = open_source(
            uri,
            Credentials(request.credentials),
            endpoint=request.endpoint,
            region=request.region,
            style=request.style,
            token_key=request.token_key,
            parallel=request.limits.parallel,
            public=request.public,
        )
        bring_settled(store, source, record, request, report, progress)


def bring_settled(
    store: NodeStore,
    source: ModelSource,
    record: ModelRecord,
    request: FetchRequest,
    report: Report,
    progress: Progress,
) -> None:
    """``bring``, again where the source changes meanwhile; SourceChanged where it does not settle."""
    begun = time.monotonic()
    for attempt in range(RELISTED):
        try:
            bring(store, source, record, request, report, progress, begun)
        except FetchError as error:
            if error.reason != "SourceChanged" or attempt == RELISTED - 1:
                raise
        else:
            return


def bring(
    store: NodeStore,
    source: ModelSource,
    record: ModelRecord,
    request: FetchRequest,
    report: Report,
    progress: Progress,
    begun: float | None = None,
) -> None:
    """One listing of a source onto the disk, and the model's link to it. ``begun``: when the first attempt was."""
    progress.phase("Listing")
    pace = Pace(request.limits, started=begun)
    progress.over(pace, 0, 0)
    listing = list_files(pace, source)
    chosen, report.weights = choose(listing.files, request.rules)
    digest = digest_of(listing, chosen, f"{record.model} {record.uid}".strip())
    report.revision = listing.revision
    progress.over(pace, len(chosen), sum(file.size for file in chosen))
    with store.locked():
        before = store.record(record.model)
        is_proved = before is not None and (before.entry, before.uid) == (digest, record.uid)
        store.check_path(record)
        store.write(replace(before or record, wanted=digest))
    if before is not None and before.wanted not in (None, digest):
        store.collect()  # What was begun of an earlier state is in nobody's way, and in no namespace's share.

    def waiting() -> None:
        progress.phase("Waiting")
        pace.check()
        time.sleep(0.2)

    shared = False
    try:
        with store.entry_locked(digest, waiting):
            manifest, unread = store.manifest(digest), chosen
            missing = store.missing(digest, manifest) if manifest else None
            shared = manifest is not None
            try:
                if manifest is None or missing:
                    download = Download(store, source, digest, listing, chosen, pace, missing, record.model)
                    manifest, unread = download.run(progress.phase), download.unread
                elif not is_proved:
                    DiskReservation(store, digest, record.model, pace).check_share(chosen)
                if not is_proved:
                    prove_access(pace, source, unread)
            finally:
                report.fetchedBytes += pace.fetched
            progress.phase("Finalizing")
            with store.locked():
                store.link(replace(record, wanted=digest, weights=report.weights), request.in_use, time.time())
    except FetchError as error:
        # A model that may not have an entry, or has brought nothing of it, does not keep it on the disk.
        if shared or error.reason in _REFUSALS:
            with suppress(OSError):  # a full disk
                store.give_up(record.model, digest)
        raise
    store.collect()
    _done(report, manifest, store, digest, "")
    report.fromStore = report.fetchedBytes == 0


def check(root: Path, model: str, report: Report, *, quick: bool) -> None:
    """Every file of a model against its manifest; what is damaged is noted for the next fetch."""
    with NodeStore(root) as store:
        record = store.record(model)
        manifest = store.manifest(record.entry) if record and record.entry else None
        if record is None or record.entry is None or manifest is None:
            raise FetchError("Damaged", f"{model} has no complete files below {root}; fetch it", retryable=True)
        with store.locked():
            at = store.disk.lstat(record.path)
        names = store.missing(record.entry, manifest)
        gone, files = len(names), () if quick else manifest.files
        for file in files:
            if file.name not in names and store.hash_of(f"entries/{record.entry}/files/{file.name}") != file.sha256:
                names.add(file.name)
        store.note_damaged(record.entry, names)
        _fill(report, manifest)
        if names or at is None:
            some = ", ".join(sorted(names)[:5]) + (", …" if len(names) > 5 else "")
            what = f"{gone} of {len(manifest.files)} files are gone, {len(names) - gone} are changed: {some}"
            if not names:
                what = f"the link {root / record.path} is gone"
            raise FetchError("Damaged", f"{model}: {what[:1000]}; fetch it again", retryable=True)
        report.outcome = "Verified"
        report.message = f"{counted(len(manifest.files), 'file is as it was', 'files are as they were')} fetched"


def remove(root: Path, model: str, in_use: InUse, report: Report) -> None:
    """The model's link and what nothing else refers to."""
    with NodeStore(root) as store:
        with store.locked():
            there = store.remove(model, in_use)
        store.collect()
    report.outcome = "Removed"
    report.message = f"{model} is removed" if there else f"{model} is not on this node"


def _look(uri: LocalFolder | ClaimFolder, request: FetchRequest, report: Report) -> None:
    """A folder that is there already: inside its limits, even through links."""
    limit = Path(request.below or request.root).resolve()
    folder = Path(request.path).resolve()
    if not folder.is_relative_to(limit):
        raise FetchError("PathRefused", f"path {request.path[:200]!r} leads out of {limit}; write a path below it")
    if not folder.is_dir():
        raise FetchError("LocalPathNotFound", f"{uri}: there is no folder {request.path[:200]!r} on this node")
    report.outcome, report.fromStore, report.message = "Fetched", True, "the files are there already"
    _detect(report, folder)


def _done(report: Report, manifest: FileManifest, store: NodeStore, digest: str, message: str) -> None:
    _fill(report, manifest)
    report.outcome, report.fromStore = "Fetched", True
    report.message = message or f"{counted(len(manifest.files), 'file')}, {manifest.size} bytes"
    name = f"entries/{digest}/facts-{__version__}.json"
    if known := store.home.read(name):
        report.facts = json.loads(known)
        return
    _detect(report, store.root / HOME / "entries" / digest / "files")
    if not report.factsError:
        store.home.write(name, json.dumps(report.facts).encode())


def _fill(report: Report, manifest: FileManifest) -> None:
    report.revision, report.manifestSha256 = manifest.revision, manifest.sha256
    report.bytes, report.files = manifest.size, len(manifest.files)


def _detect(report: Report, folder: Path) -> None:
    """What the files say of the model. They are a stranger's: whatever is wrong with them is no failure of fetching."""
    from modelyard.models.detection import detect  # Not imported where nothing is new.

    try:
        report.facts = json.loads(detect(folder).to_json())
    except Exception as error:
        report.factsError = f"{type(error).__name__}: {error}"[:500]
