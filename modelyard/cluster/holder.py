"""Who holds a Lease, written so that others can look whether it still lives."""

from __future__ import annotations

import hashlib
import os
import re
import socket
from pathlib import Path
from typing import NamedTuple, Self

_IDENTITY = re.compile(
    r"(?P<name>.+)_(?P<pid>[1-9]\d{0,9})_(?P<started>\d{1,20})_(?P<place>[0-9a-f]*)_(?P<pod_uid>[0-9a-f-]*)_[0-9a-f]+",
    re.ASCII,
)


class Holder(NamedTuple):
    """A process that asks for a Lease. Its text, with a token behind it, is the identity in the Lease."""

    name: str
    """The pod as namespace/name, where that is known; else the host."""
    pid: int
    started: int
    """Clock ticks from the start of the kernel to that of the process: process ids are used again."""
    place: str
    """The running kernel and the PID namespace, digested: who is there sees the process. Empty: not known."""
    pod_uid: str
    """Empty outside a pod."""

    @classmethod
    def here(cls) -> Self:
        """This process. The pod is what POD_NAMESPACE, POD_NAME and POD_UID say."""
        place, started = "", 0
        try:
            boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii")
            namespace = str(Path("/proc/self/ns/pid").readlink())
            place = hashlib.sha256((boot + namespace).encode()).hexdigest()[:16]
            started = _started(os.getpid())
        except OSError:  # not Linux
            place = ""
        pod = [os.environ.get(f"POD_{part}", "") for part in ("NAMESPACE", "NAME", "UID")]
        if all(pod):
            return cls(f"{pod[0]}/{pod[1]}", os.getpid(), started, place, pod[2])
        return cls(socket.gethostname(), os.getpid(), started, place, "")

    @classmethod
    def read(cls, identity: str) -> Self | None:
        found = _IDENTITY.fullmatch(identity[:1024])
        if found is None:
            return None
        return cls(found["name"], int(found["pid"]), int(found["started"]), found["place"], found["pod_uid"])

    def __str__(self) -> str:
        return "_".join(map(str, self))

    def has_ended(self) -> bool:
        """Whether the process is certainly over; never where this one could not see it."""
        if not self.place or self.place != Holder.here().place:
            return False
        try:
            os.kill(self.pid, 0)
            return _started(self.pid) != self.started
        except (ProcessLookupError, FileNotFoundError):
            return True
        except OSError:  # somebody else's process has this id
            return False


def _started(pid: int) -> int:
    """See ``Holder.started``; 0 for a process that was killed and waits to be collected."""
    # What follows the command, which stands in parentheses and may hold anything.
    fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    return 0 if fields[0] in ("Z", "X") else int(fields[19])
