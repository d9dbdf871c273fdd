"""Files and buckets that the parameters of a deployment's run may name, on the worker's machine.

Whoever may create runs chooses their parameters; which files a worker reads and writes for them is for its operator to
say.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from prefect.runtime import deployment

from modelyard.reports import S3

FOLDERS, BUCKETS = "MODELYARD_RUN_FOLDERS", "MODELYARD_RUN_BUCKETS"


class RunFilesError(ValueError):
    """A parameter names a file or bucket that runs of this worker may not use; the message says what to do."""


@dataclass(frozen=True, slots=True)
class RunFiles:
    """Folders that runs may read and write, and buckets (``BUCKET`` or ``BUCKET/PREFIX``) that they may write."""

    folders: tuple[Path, ...]
    buckets: tuple[str, ...] = ()

    @classmethod
    def of_environment(cls, environment: Mapping[str, str], working_folder: Path) -> RunFiles:
        """Read both variables: folders with ``:`` between two (unset: the working folder), buckets with commas."""
        folders = [Path(name) for name in environment.get(FOLDERS, "").split(os.pathsep) if name]
        buckets = (name.strip().removeprefix(S3).strip("/") for name in environment.get(BUCKETS, "").split(","))
        return cls(tuple(folders) or (working_folder,), tuple(filter(None, buckets)))

    def check_file(self, field: str, path: Path) -> None:
        """Refuse a path that leads out of the folders, by a symbolic link or otherwise. Raises ``RunFilesError``."""
        target = path.resolve()
        if not any(target.is_relative_to(folder.resolve()) for folder in self.folders):
            allowed = ", ".join(map(str, self.folders))
            raise RunFilesError(
                f"{field}: {str(path)[:200]!r} is outside of the folders that runs of this worker may use ({allowed}); "
                f"put the file there, or have an operator add its folder to {FOLDERS} in the worker's environment"
            )

    def check_output(self, field: str, out: str) -> None:
        """Refuse a folder or ``s3://BUCKET/PREFIX`` that runs may not write. Raises ``RunFilesError``."""
        if not out.startswith(S3):
            self.check_file(field, Path(out))
            return
        name = out.removeprefix(S3).strip("/")
        if not any(f"{name}/".startswith(f"{bucket}/") for bucket in self.buckets):
            raise RunFilesError(
                f"{field}: {out[:200]!r} is no bucket that runs of this worker may write "
                f"({', '.join(self.buckets) or 'there is none'}); have an operator add BUCKET or BUCKET/PREFIX to "
                f"{BUCKETS} in the worker's environment"
            )


def check_run_files(inputs: Iterable[tuple[str, Path]], outputs: Iterable[tuple[str, str]] = ()) -> None:
    """Check the files that the current run's parameters name, each with its field. Raises ``RunFilesError``.

    A run without a deployment is in its user's own terminal, who may name any file.
    """
    if deployment.id is None:
        return
    allowed = RunFiles.of_environment(os.environ, Path.cwd())
    for field, path in inputs:
        allowed.check_file(field, path)
    for field, out in outputs:
        allowed.check_output(field, out)
