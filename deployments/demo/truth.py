"""Whether a run of the demonstration may be believed: clients that kept to the trace, requests answered, looks in time.

Pure. On a starved machine everything is late: the clients, the engines, the looks at them. Such a run says nothing
about autoscaling, and is void. Times are seconds of the trace's time, which the compression multiplies.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from deployments.demo.scenario import SLO_TTFT
from deployments.demo.watch import Moment, Sample
from modelyard.traffic.latency import Ending, Percentiles, percentiles
from modelyard.traffic.replay import RequestResult

LATE = 0.1 * SLO_TTFT / 1000
"""More lateness than this, at the 95th percentile, and the latencies shown are those of the machine as well: a tenth of
the TTFT target, since that is what a request sent late seems to have waited."""
FAR_TOO_LATE = SLO_TTFT / 1000
"""More than this, at the 99th percentile, and what was sent is not the trace."""
FAILED = 0.001
"""A larger share of failed requests than this is no service."""
UNSEEN = 0.05
"""A larger share of time without a look at the cluster than this, and nobody knows what it cost."""


class Finding(NamedTuple):
    """Something that a reader must know. ``void``: the run shows nothing."""

    void: bool
    text: str


@dataclass(frozen=True)
class Truth:
    """How the run was: lateness of sends, requests that failed by how they ended, minutes of the trace not seen."""

    due: int
    sent: int
    late: Percentiles
    failed: Counter[Ending]
    minutes: float
    unseen: float

    @classmethod
    def of(cls, due: int, results: Sequence[RequestResult], moments: Sequence[Moment], longest: float) -> Truth:
        """``due`` requests are in the trace; a look tells of at most ``longest`` minutes of it."""
        late = percentiles(np.array([one.late for one in results], dtype=np.float64))
        failed: Counter[Ending] = Counter(one.ending for one in results if one.ending is not Ending.OK)
        seen = sum(minutes for _, minutes in spans(moments, longest))
        whole = moments[-1].minute - moments[0].minute if moments else 0.0
        return cls(due, len(results), late, failed, whole, whole - seen)

    @property
    def findings(self) -> list[Finding]:
        """What is wrong with the run, the worst first."""
        found = []
        share = self.failed.total() / self.sent if self.sent else 1.0
        if self.sent < self.due:
            found.append(Finding(True, f"{self.due - self.sent} of the {self.due} requests of the trace were not sent"))
        if share:
            text = f"{self.failed.total()} of {self.sent} requests failed ({self._endings()})"
            found.append(Finding(share > FAILED, text))
        if self.late.p99 > FAR_TOO_LATE:
            found.append(Finding(True, f"the clients did not keep to the trace: {self._lateness()}"))
        elif self.late.p95 > LATE:
            text = f"the machine is too busy for honest latencies, those above contain its own: {self._lateness()}"
            found.append(Finding(False, text))
        if not self.minutes or self.unseen / self.minutes > UNSEEN:
            text = f"the cluster was not seen during {self.unseen:.1f} of {self.minutes:.1f} minutes"
            found.append(Finding(True, text))
        return sorted(found, key=lambda finding: not finding.void)

    @property
    def void(self) -> bool:
        """Whether the run shows nothing."""
        return any(finding.void for finding in self.findings)

    @property
    def text(self) -> str:
        """The measurements in a sentence."""
        failed = f"{self.failed.total()} failed" if self.failed else "none failed"
        return (
            f"{self.sent} of {self.due} requests sent, {failed}; {self._lateness()}; {self.unseen:.1f} minutes not seen"
        )

    def _endings(self) -> str:
        return ", ".join(
            f"{count} {ending.name.lower().replace('_', ' ')}" for ending, count in self.failed.most_common()
        )

    def _lateness(self) -> str:
        values = (self.late.p50, self.late.p95, self.late.p99)
        late = ", ".join("-" if math.isnan(value) else f"{value:.2f}" for value in values)
        return f"sent {late} s late (p50, p95, p99)"


def spans(moments: Sequence[Moment], longest: float) -> list[tuple[Sample, float]]:
    """Each look with the minutes that it tells of: until the next one, unless that failed or came too late."""
    return [
        (before, after.minute - before.minute)
        for before, after in pairwise(moments)
        if isinstance(before, Sample) and isinstance(after, Sample) and after.minute - before.minute <= longest
    ]
