"""Which of a source's files are fetched, and whether their names are fit for a disk. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from modelyard.models.beneath import parts
from modelyard.models.errors import FetchError
from modelyard.models.sources import SourceFile

_OTHER_WEIGHTS = re.compile(r"\.(bin|pt|pth|ckpt|h5|msgpack|onnx|onnx_data|gguf|tflite|ot)\Z", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class FileRules:
    """``include`` and ``exclude`` are patterns of a shell; '*' also matches '/'. No include means everything.

    ``accelerator``: only files with ``/<accelerator>/`` in their path at the source, as TensorRT-LLM engines are kept.
    """

    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    all_formats: bool = False
    accelerator: str | None = None


def choose(files: Iterable[SourceFile], rules: FileRules) -> tuple[SourceFile, ...]:
    """The files to fetch, in a fixed order. FetchError: a hostile name, or nothing is left.

    Where there are safetensors, weights in other formats in the same folder or below it are left out, unless a pattern
    of ``include`` names them.
    """
    found = sorted(files, key=lambda file: file.name)
    safe = {file.name.rpartition("/")[0] for file in found if file.name.endswith(".safetensors")}

    def wanted(file: SourceFile) -> bool:
        if rules.accelerator is not None and f"/{rules.accelerator}/" not in f"/{file.key}":
            return False
        if _matches(file.name, rules.exclude):
            return False
        if rules.include:
            return _matches(file.name, rules.include)
        return rules.all_formats or not (_OTHER_WEIGHTS.search(file.name) and any(_above(file.name, safe)))

    chosen = tuple(file for file in found if wanted(file))
    if not chosen:
        raise FetchError(
            "NothingToFetch",
            f"none of {len(found)} files is wanted; check storageUri, include, exclude and accelerator",
        )
    _check_names(chosen)
    return chosen


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _above(name: str, folders: set[str]) -> Iterable[bool]:
    folder = name.rpartition("/")[0]
    while True:
        yield folder in folders
        if not folder:
            return
        folder = folder.rpartition("/")[0]


def _check_names(files: Sequence[SourceFile]) -> None:
    folders: set[str] = set()
    names: set[str] = set()
    for file in files:
        *above, _ = parts(file.name, "the file name")
        if file.name in names:
            raise FetchError(
                "HostileName", f"the file name {file.name[:200]!r} is listed twice; rename it at the source"
            )
        if file.size < 0:
            raise FetchError(
                "SourceUnavailable", f"{file.name[:200]!r} is listed with {file.size} bytes", retryable=True
            )
        names.add(file.name)
        for count in range(1, len(above) + 1):
            folders.add("/".join(above[:count]))
    if both := min(names & folders, default=None):
        raise FetchError("HostileName", f"{both[:200]!r} is a file and a folder; rename one of them at the source")
