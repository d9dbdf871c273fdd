"""Results of benchmarks as tables: written beside the runs, kept as a history, read back from wherever they are.

Below an output's place: ``FOLDER/runs/NAME/`` has the files of one run (``run.json`` is ours and the last to be
written), ``FOLDER/summary.csv`` and two pictures all runs that are there, and ``history/`` a Parquet file of one row a
run, so that nobody who writes one can lose another's. ``trends/`` has a picture of each run made more than once. Both
have a folder for each BenchmarkJob (NAMESPACE/NAME): many may share a place.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from modelyard.benchmarks.jobs import benchmark
from modelyard.benchmarks.measuring.outputs import FolderStore, ResultStore, open_output
from modelyard.benchmarks.records import LARGEST_FILE, LatencySpread, MeasuredRun, MeasuredServer, MeasureError, Output

RUN, RUNS, SUMMARY, HISTORY, TRENDS = "run.json", "runs", "summary.csv", "history", "trends"
_MOST_IN_TREND = 60
_SPREADS = ("latency", "ttft", "itl")
_TEXTS = ("reference", "service", "model", "engine", "gpu_type", "scenario", "started")
_COUNTS = ("gpu_count", "concurrency", "requests", "failed")


class _About(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")
    reference: str = Field("", max_length=600)
    service: str = Field("", max_length=2048)
    model: str = Field("", max_length=600)
    server: MeasuredServer = MeasuredServer()


class RunRecord(BaseModel):
    """One run as it is stored."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    program: str = Field("", max_length=100)
    measurement: _About = _About()
    run: MeasuredRun


@dataclass(frozen=True, slots=True)
class BenchmarkResults:
    """The runs of one benchmark, under the name by which they were asked for."""

    name: str
    records: tuple[RunRecord, ...]

    @property
    def runs(self) -> tuple[MeasuredRun, ...]:
        """In order of scenario and concurrency."""
        return tuple(record.run for record in self.records)


def ordered(name: str, records: Iterable[RunRecord]) -> BenchmarkResults:
    """By scenario and concurrency; of several of one, the one that began last."""
    oldest_first = sorted(records, key=lambda one: one.run.started)
    newest = {(one.run.scenario, one.run.concurrency): one for one in oldest_first}
    return BenchmarkResults(name, tuple(newest[which] for which in sorted(newest)))


def summarize(store: ResultStore, folder: str, which: str) -> None:
    """Write table and pictures of all runs in a folder, add the one that is named to the history, draw its trend."""
    from modelyard.benchmarks.records import draw, trend

    record = _record(store.read(f"{folder}/{RUNS}/{which}/{RUN}"))
    moment = re.sub(r"[^A-Za-z0-9-]", "", record.run.started)[:20]
    reference = record.measurement.reference
    history = f"{HISTORY}/{_as_name(reference)}"
    store.write(f"{history}/{moment}-{folder[:150]}-{which}.parquet", parquet([record]))
    found = of_store(store, f"{folder}/{RUNS}", folder, skip=True)
    store.write(f"{folder}/{SUMMARY}", as_csv(found.records).encode())
    with tempfile.TemporaryDirectory(prefix="modelyard-charts-") as name:
        for path in draw(found.name, found.runs, Path(name)):
            store.write(f"{folder}/{path.name}", path.read_bytes())
        if len(past := _past(store, history, reference, which)) > 1:
            path = trend(f"{reference}: {record.run.scenario} at {record.run.concurrency}", past, Path(name))
            store.write(f"{TRENDS}/{_as_name(reference)}/{which}.png", path.read_bytes())


def _past(store: ResultStore, history: str, reference: str, which: str) -> list[MeasuredRun]:
    found: list[MeasuredRun] = []
    for name in [one for one in store.names(history) if one.endswith(f"-{which}.parquet")][-_MOST_IN_TREND:]:
        with contextlib.suppress(MeasureError):
            records = (_unflat(row, name) for row in _parquet_rows(store.read(name), Path(name)))
            found += [one.run for one in records if one.measurement.reference == reference]
    return found


def _as_name(reference: str) -> str:
    parts = [re.sub(r"[^A-Za-z0-9._-]|\.\.", "_", part).lstrip("._-")[:200] for part in reference.split("/")[:2]]
    return "/".join(part or "run" for part in parts)


def of_store(store: ResultStore, below: str, name: str, *, skip: bool = False) -> BenchmarkResults:
    """The runs whose records are below a name. ``skip``: records that cannot be read are none."""
    found: list[RunRecord] = []
    for file in store.names(below):
        if file.endswith(f"/{RUN}"):
            with contextlib.suppress(*([MeasureError] if skip else [])):
                found.append(_record(store.read(file), file))
    return ordered(name, found)


def kept(obj: Mapping[str, Any]) -> BenchmarkResults:
    """What a BenchmarkJob, as the API sends it, has measured in its last series."""
    one = benchmark(obj)
    return ordered(str(one.key), [RunRecord(run=run) for run in one.memory.runs])


def load(source: str, environ: Mapping[str, str] = os.environ) -> BenchmarkResults:
    """The results in a file (JSON, CSV or Parquet), a folder, or at a URI with the folder at its end.

    Raises ``MeasureError``.
    """
    path = Path(source)
    if "://" in source:
        store = open_output(Output(uri=source, folder=RUNS), environ)
        found = of_store(store, RUNS, source)
    elif path.is_dir():
        files = [] if (path / RUNS).is_dir() else sorted(path.rglob("*.parquet"))
        found = of_store(FolderStore(path), RUNS, source) if not files else ordered(source, _each(files))
    elif path.is_file():
        found = ordered(source, _each([path]))
    else:
        raise MeasureError("OutputNotFound", f"{source}: there is no such file or folder")
    if not found.records:
        raise MeasureError("OutputNotFound", f"{source}: holds no run; name the folder that has {RUNS}/ in it")
    return found


def _each(files: Sequence[Path]) -> Iterable[RunRecord]:
    for file in files:
        if file.stat().st_size > LARGEST_FILE:
            raise MeasureError("ResultTooLarge", f"{file}: more than {LARGEST_FILE} bytes")
        body = file.read_bytes()
        if file.suffix == ".parquet":
            yield from (_unflat(row, file) for row in _parquet_rows(body, file))
        elif file.suffix == ".csv":
            text = body.decode("utf-8", "replace")
            yield from (_unflat(row, file) for row in csv.DictReader(io.StringIO(text)))
        else:
            yield _record(body, str(file))


def _record(body: bytes, where: str = RUN) -> RunRecord:
    try:
        return RunRecord.model_validate_json(body)
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(map(str, fault["loc"])) or "JSON"
        raise MeasureError("ResultInvalid", f"{where}: {place}: {fault['msg'][:200]}") from None


# Tables


def row(record: RunRecord) -> dict[str, str | int | float | None]:
    """A record as one flat row; ``None`` where there is nothing to tell. Latencies in seconds, rates per second."""
    about, run = record.measurement, record.run
    found: dict[str, Any] = about.model_dump(exclude={"server"})
    found |= about.server.model_dump(exclude={"version"})
    found |= run.model_dump(exclude=set(_SPREADS)) | {"error_share": run.error_share}
    for name in _SPREADS:
        spread: LatencySpread | None = getattr(run, name)
        parts = spread.model_dump() if spread is not None else dict.fromkeys(LatencySpread.model_fields)
        found |= {f"{name}_{part}": value for part, value in parts.items()}
    return found


def _unflat(given: Mapping[str, Any], where: object) -> RunRecord:
    cells = {str(name): value for name, value in given.items() if value not in (None, "")}
    run: dict[str, Any] = {name: cells.get(name) for name in MeasuredRun.model_fields if name not in _SPREADS}
    for name in _SPREADS:
        parts = {part: cells.get(f"{name}_{part}") for part in LatencySpread.model_fields}
        run[name] = parts if any(value is not None for value in parts.values()) else None
    about = {name: cells.get(name, "") for name in ("reference", "service", "model")}
    server = {name: cells.get(name) for name in ("engine", "gpu_type", "gpu_count")}
    return _record(json.dumps({"run": run, "measurement": about | {"server": server}}).encode(), str(where))


def as_csv(records: Iterable[RunRecord]) -> str:
    """One line a run."""
    rows = [row(record) for record in records]
    file = io.StringIO()
    writer = csv.DictWriter(file, list(rows[0]) if rows else ["scenario"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def parquet(records: Iterable[RunRecord]) -> bytes:
    """The same as Parquet."""
    from arro3.core import Array, DataType, Table
    from arro3.io import write_parquet

    rows = [row(record) for record in records]
    columns: dict[str, Any] = {}
    for name in rows[0]:
        kind = DataType.utf8() if name in _TEXTS else DataType.int64() if name in _COUNTS else DataType.float64()
        columns[name] = Array([one[name] for one in rows], kind)
    body = io.BytesIO()
    write_parquet(Table.from_pydict(columns), body)
    return body.getvalue()


def _parquet_rows(body: bytes, where: Path) -> list[dict[str, Any]]:
    from arro3.io import read_parquet

    footer = int.from_bytes(body[-8:-4], "little")
    try:
        if not body.startswith(b"PAR1") or not body.endswith(b"PAR1") or footer + 12 > len(body):
            raise ValueError("its ends are not those of one")
        table = read_parquet(io.BytesIO(body)).read_all()
        columns = {name: table.column(name).to_pylist() for name in table.column_names}
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":  # of its Rust
            raise
        raise MeasureError("ResultInvalid", f"{where}: is no Parquet file: {str(error)[:200]}") from None
    return [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
