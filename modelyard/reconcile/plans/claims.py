"""Claims: which run may work on an object, written in an annotation of the object."""

from __future__ import annotations

import re
from typing import NamedTuple

_CLAIM = re.compile(
    r"(?P<run>[\w./-]{1,512}) (?P<fingerprint>[0-9a-f]{12})/(?P<attempt>\d{1,6}) (?P<at>\d{1,12})", re.ASCII
)


class Claim(NamedTuple):
    """Right of a run (by its idempotency key) to work on an object as of a fingerprint, by attempt and time."""

    run: str
    fingerprint: str
    attempt: int
    at: float

    def __str__(self) -> str:
        return f"{self.run} {self.fingerprint}/{self.attempt} {self.at:.0f}"

    @classmethod
    def read(cls, text: str) -> Claim | None:
        """The claim in an annotation; ``None`` for none, or for what is none (anybody may write annotations)."""
        found = _CLAIM.fullmatch(text[:1024])
        if found is None:
            return None
        return cls(found["run"], found["fingerprint"], int(found["attempt"]), float(found["at"]))
