"""Which parts of a download are on the disk: a journal beside them, readable after an end at any byte."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from modelyard.models.download.store import NodeStore


class PartsJournal:
    """Which parts and files of a partial entry are on the disk, one line each, readable after an end at any byte."""

    def __init__(self, store: NodeStore, folder: str, part_size: int) -> None:
        self._store, self._name = store, f"{folder}/journal"
        self.part_size = part_size
        self.parts: dict[int, set[int]] = {}
        self.files: dict[int, str] = {}
        self.same_boot = True
        lines = (store.home.read(self._name) or b"").decode("ascii", "replace").split("\n")
        if len(lines) > 1 and lines[0].startswith("modelyard 1 ") and len(lines[0].split()) == 4:
            *_, boot, size = lines[0].split()
            self.part_size, self.same_boot = int(size), boot == _boot()
            for line in lines[1:-1]:  # What follows the last newline was not written to its end.
                self._take(line.split())
        self._fd = -1

    def begin(self) -> None:
        lines = [f"modelyard 1 {_boot()} {self.part_size}"]
        lines += [f"f {index} {digest}" for index, digest in self.files.items()]
        lines += [f"p {index} {part}" for index, parts in self.parts.items() for part in parts]
        self._store.home.write(self._name, "".join(f"{line}\n" for line in lines).encode())
        self._fd = self._store.home.open(self._name, os.O_WRONLY | os.O_APPEND)

    def note(self, kind: str, index: int, what: object = "") -> None:
        """p: a part is there; f: a file is complete, with its hash; x: a file must be fetched anew."""
        os.write(self._fd, f"{kind} {index} {what}\n".encode())

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def _take(self, words: list[str]) -> None:
        with contextlib.suppress(ValueError):  # A disk that was full has cut a line short, and another one followed.
            match words:
                case ["p", index, part]:
                    self.parts.setdefault(int(index), set()).add(int(part))
                case ["f", index, digest] if len(digest) == 64:
                    self.files[int(index)] = digest
                case ["x", index]:
                    self.parts.pop(int(index), None)
                    self.files.pop(int(index), None)


def _boot() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip() or "unknown"
    return "unknown"
