"""Which of a source's files are fetched, and whether their names are fit for a disk. Pure."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, NamedTuple

from pydantic import Field

from modelyard.models.sources import SourceFile
from modelyard.models.storage import FetchError, NoSuchWeights, choose_weights, folders_above, parts, unavailable

MOST_FOLDERS = 32
"""Folders above a file; each one takes an inode."""


@dataclass(frozen=True, slots=True)
class FileRules:
    """``include`` and ``exclude`` are patterns of a shell; '*' also matches '/'. No include means everything.

    ``weights`` names the set of weights to fetch where there are several (see ``weight_sets``).
    ``accelerator``: only files with ``/<accelerator>/`` in their path at the source, as TensorRT-LLM engines are kept.
    """

    include: Annotated[Sequence[str], Field(description="pattern of names to fetch; unset: all")] = ()
    exclude: Annotated[Sequence[str], Field(description="pattern of names to leave out")] = ()
    all_formats: Annotated[bool, Field(description="fetch other formats also where there are safetensors")] = False
    accelerator: Annotated[str | None, Field(description="only files with /NAME/ in their path")] = None
    weights: Annotated[
        str, Field(description="set of weights where there are several: a format, a quantization, a folder, or all")
    ] = ""

    @property
    def digest(self) -> str:
        rules = [list(self.include), list(self.exclude), self.all_formats, self.accelerator, self.weights]
        return hashlib.sha256(json.dumps(rules).encode()).hexdigest()[:16]


class FileChoice(NamedTuple):
    """The files to fetch, in a fixed order, and why copies of the weights are left out (empty: there are none)."""

    files: tuple[SourceFile, ...]
    weights: str


def choose(files: Iterable[SourceFile], rules: FileRules) -> FileChoice:
    """Choose the files to fetch. FetchError: a hostile name, no such weights, or no file is left.

    Of weights that a repository holds several times one set is fetched, unless ``include`` names files.
    """
    listed = sorted(files, key=lambda file: file.name)
    chosen = [file for file in listed if _is_wanted(file, rules)]
    message = ""
    if rules.weights or not (rules.include or rules.all_formats):
        try:
            left_out, message = choose_weights({file.name: file.size for file in chosen}, rules.weights)
        except NoSuchWeights as error:
            raise FetchError("NoSuchWeights", f"{error}; correct storage.parameters.weights") from error
        chosen = [file for file in chosen if file.name not in left_out]
    if not chosen:
        raise FetchError(
            "NothingToFetch",
            f"none of {len(listed)} files is wanted; check storageUri, include, exclude and accelerator",
        )
    _check_names(chosen)
    return FileChoice(tuple(chosen), message)


def _is_wanted(file: SourceFile, rules: FileRules) -> bool:
    if rules.accelerator is not None and f"/{rules.accelerator}/" not in f"/{file.key}":
        return False
    return not _matches(file.name, rules.exclude) and (not rules.include or _matches(file.name, rules.include))


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _check_names(files: Sequence[SourceFile]) -> None:
    names: dict[str, str] = {}
    for file in files:
        *above, _ = parts(file.name, "the file name")
        if len(above) > MOST_FOLDERS:
            raise FetchError(
                "HostileName",
                f"the file name {file.name[:200]!r} has more than {MOST_FOLDERS} folders; rename it at the source",
            )
        plain = unicodedata.normalize("NFC", file.name).casefold()
        if names.get(plain) == file.name:
            raise FetchError(
                "HostileName", f"the file name {file.name[:200]!r} is listed twice; rename it at the source"
            )
        if plain in names:
            raise FetchError(
                "HostileName",
                f"the file names {names[plain][:200]!r} and {file.name[:200]!r} are one name on some disks; name one of"
                " them in storage.parameters.exclude",
            )
        if file.size < 0:
            raise unavailable(f"{file.name[:200]!r} is listed with {file.size} bytes")
        names[plain] = file.name
    folders = folders_above(names.values())
    if both := min((name for name in names.values() if name in folders), default=None):
        raise FetchError("HostileName", f"{both[:200]!r} is a file and a folder; rename one of them at the source")
