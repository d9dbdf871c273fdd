"""The comparison of docs/replay.md: every policy on every cell.

    python benchmarks/quality [--small] [--only REGEX] [--processes N] [--minutes N] [--out FOLDER] [--report PLACE]
                              [--write]

Each task (a policy in a cell) is a row that is kept in the folder as soon as it is there: a run that was stopped goes
on where it was, ``--fresh`` begins anew. At the end ``grid.parquet``, ``grid.md`` and ``grid.png`` of all rows there
are go into the report, a folder or s3://bucket/prefix; ``--write`` puts the tables into docs/replay.md. Equal from run
to run: everything random is seeded. Nothing is run where the compiled engines disagree with the replay's.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from pathlib import Path
from typing import Any

if not __package__:  # run as a folder, which is then on the path itself
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import orjson
from quality import agreement, report, shared
from quality.cells import GRID, SMALL, Cell, rows_of, work
from quality.shared import SHARED, SHARED_SMALL, SharedCell

from modelyard import reports


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="three cells, in about a minute")
    parser.add_argument("--only", default="", help="cells and policies whose 'cell/policy' this expression finds")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start nothing new after so many")
    parser.add_argument("--out", type=Path, default=Path("quality-grid"), help="folder of the rows")
    parser.add_argument("--report", type=reports.place, help="folder or s3://bucket/prefix of the report")
    parser.add_argument("--fresh", action="store_true", help="forget the rows there are of what is run")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/replay.md")
    options = parser.parse_args(arguments)
    place = options.report or str(options.out / "report")
    reports.check(place, report.TABLE)
    cells = (*SMALL, SHARED_SMALL) if options.small else (*GRID, *SHARED)
    tasks = [(cell, name) for cell in cells for name in _names(cell) if re.search(options.only, f"{cell.name}/{name}")]
    rows = options.out / "rows"
    rows.mkdir(parents=True, exist_ok=True)
    if options.fresh:
        for task in tasks:
            _file(rows, *task).unlink(missing_ok=True)
    agreement.check(agreement.random_fleet(19), "before the benchmark")
    failed = _run(tasks, rows, options.processes, options.minutes)
    known = {cell.name: cell for cell in cells}
    found = [orjson.loads(file.read_bytes()) for file in sorted(rows.glob("*.json"))]
    found = [row for row in found if row["cell"] in known]
    with reports.written(place, report.TABLE) as folder:
        tables = report.write(found, list(known), folder)
    print(f"written: {reports.link(place)}", file=sys.stderr)
    if options.write:
        report.put(tables)
    if failed:
        raise SystemExit("\n".join(failed))


def _names(cell: Cell | SharedCell) -> Sequence[str]:
    return shared.ROWS if isinstance(cell, SharedCell) else rows_of(cell)


def _file(rows: Path, cell: Cell | SharedCell, name: str) -> Path:
    return rows / f"{cell.name}--{name.replace(', ', '-')}.json"


def _run(tasks: list[tuple[Cell | SharedCell, str]], rows: Path, processes: int, minutes: float) -> list[str]:
    """Work off what has no row yet; what failed, in words."""
    left = [task for task in tasks if not _file(rows, *task).exists()]
    done, total, begin = len(tasks) - len(left), len(tasks), time.monotonic()
    failed: list[str] = []
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        running: dict[Future[dict[str, Any]], tuple[Cell | SharedCell, str]] = {}
        while left or running:
            late = time.monotonic() - begin > 60 * minutes
            while left and len(running) < processes and not late:
                task = left.pop(0)
                does = shared.work if isinstance(task[0], SharedCell) else work
                running[pool.submit(does, *task)] = task
            if not running:
                break
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                cell, name = running.pop(future)
                done += 1
                try:
                    row = future.result()
                except Exception as error:  # the others go on
                    failed.append(f"{cell.name}/{name}: {type(error).__name__}: {error}")
                    print(failed[-1], file=sys.stderr, flush=True)
                    continue
                file = _file(rows, cell, name)
                temporary = file.with_suffix(".new")
                temporary.write_bytes(orjson.dumps(row, option=orjson.OPT_INDENT_2))
                temporary.replace(file)
                spent = time.monotonic() - begin
                told = f"{row['hours']:.2f} h, {row['attained']:.2%}" if "hours" in row else "done"
                print(f"{done}/{total} {spent:5.0f} s  {cell.name}/{name}: {told}", file=sys.stderr, flush=True)
    return failed


if __name__ == "__main__":
    main()
