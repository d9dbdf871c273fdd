"""What one run of a benchmark is asked for and what came of it: the contract between a BenchmarkJob's lifecycle, which
makes a Kubernetes Job for each run, and the process in that Job's pod, which measures.

The pod runs ``modelyard benchmarks measure``. It finds a ``Measurement`` as JSON in the variable ``MEASUREMENT``, the
credentials of the endpoint and of the output in its environment and nowhere else, and writes a ``MeasurementReport`` as
JSON to the file that ``--report`` names (``/dev/termination-log``; at most 4096 bytes) and as the last line of its
output. Exit status: 0 measured; 1 failed and needs a change; 75 failed, trying again may help.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain, pairwise
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

MEASUREMENT = "MEASUREMENT"
"""The variable that holds the ``Measurement``."""
DATASET_TOKEN = "DATASET_TOKEN"
"""The variable with the token of a data set that its ``parameters`` have; that of a Secret is in a mounted folder."""
LARGEST_FILE = 128 << 20
"""Bytes of one file of results that is read."""
MOST_ERRORS = 0.01
"""Share of a run's requests that may fail."""

FASTEST_TOKEN = 1e-4
"""Fewest seconds per output token of one request: faster tokens were buffered, not generated. The fastest
services generate some thousands of tokens per second for one request, engines of draft tokens included."""
SLACK = 1.1
"""Factor by which figures of one run may differ because of rounding, and of requests cut off at its end."""
START_AND_END = 2.0
"""Seconds of a run's start and end that its duration may not include."""
UNIFORM = 0.95
"""Share of a fixed scenario's output tokens from which on all answers count as equally long."""

MOST = 1e12
"""Of whatever a run measures. Anybody may write a report, and with any number not everybody can reckon."""
Figure = Annotated[float, Field(ge=0, le=MOST)]
Count = Annotated[int, Field(ge=0, le=int(MOST))]


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Output(_Value):
    """Where results go: below ``uri`` in the folder of the BenchmarkJob. ``parameters`` hold no credentials."""

    uri: str
    folder: str
    parameters: dict[str, str] = Field(default_factory=dict)
    path: str | None = None
    public: bool = False


class MeasuredServer(_Value):
    """What serves, to be kept with the results; as a BenchmarkJob's ``serviceMetadata`` names it."""

    engine: str | None = None
    version: str | None = None
    gpu_type: str | None = None
    gpu_count: int | None = None


class DatasetAccess(_Value):
    """Access to a data set: the ``revision`` of a hub's, the ``parameters`` of its storage (no credentials), and a
    folder with a file for each of its ``credentials``. ``public``: over the internet only."""

    revision: str | None = None
    parameters: dict[str, str] = Field(default_factory=dict)
    credentials: str | None = None
    public: bool = False


class Measurement(_Value):
    """One run: one scenario at one concurrency (or batch size, for embeddings) against one endpoint.

    ``url`` has host and port and no ``/v1``; ``tokenizer`` is a folder or a hub's id; ``minutes`` and ``requests`` end
    the run, whichever comes first; of its requests at most the share ``errors`` may fail. ``dataset`` is a folder, a
    hub's id, or the URI of a bucket or a release, ``columns`` are its ``prompt_column`` and ``image_column`` where
    given. ``reference`` names the BenchmarkJob (namespace/name) and ``service`` what was measured, for comparisons.
    """

    reference: str
    service: str
    backend: str
    url: str
    model: str
    tokenizer: str
    task: str
    scenario: str
    concurrency: int
    minutes: int
    requests: int
    request_parameters: dict[str, str] = Field(default_factory=dict)
    dataset: str | None = None
    access: DatasetAccess = DatasetAccess()
    columns: dict[str, str] = Field(default_factory=dict)
    server: MeasuredServer = MeasuredServer()
    errors: float = MOST_ERRORS
    public: bool = False
    output: Output


class LatencySpread(_Value):
    """How a latency is spread over a run's requests, in seconds."""

    mean: Figure
    p50: Figure
    p90: Figure
    p95: Figure
    p99: Figure

    @property
    def ordered(self) -> bool:
        """True where no percentile is below a lower one."""
        return all(low <= SLACK * high for low, high in pairwise((self.p50, self.p90, self.p95, self.p99)))


class MeasuredRun(_Value):
    """What one run measured. Rates are per second over the whole run; ``itl`` is the time per output token after the
    first of each request; ``failed`` of ``requests`` got no answer. Where an endpoint streams nothing (embeddings)
    there is no ``ttft`` and no ``itl``."""

    scenario: Annotated[str, Field(max_length=64)]
    concurrency: Count
    started: str
    seconds: Figure
    requests: Count
    failed: Count
    requests_rate: Figure
    output_rate: Figure
    prompt_tokens: Figure
    output_tokens: Figure
    latency: LatencySpread
    ttft: LatencySpread | None = None
    itl: LatencySpread | None = None

    @property
    def error_share(self) -> float:
        """Share of the requests that failed."""
        return self.failed / self.requests if self.requests else 1.0

    @property
    def spoilt(self) -> str:
        """Why nothing is to be concluded from it: too many requests failed; empty where it counts."""
        if self.error_share <= MOST_ERRORS:
            return ""
        return f"{self.failed} of {self.requests} requests failed, of which {100 * MOST_ERRORS:g} % may"

    @property
    def implausible(self) -> str:
        """Why its figures cannot be true together; empty where they can."""
        return next(chain(self._impossible_stream(), self._impossible_load()), "")

    @property
    def unusable(self) -> str:
        """Why no profile is fitted to it and no decision is based on it; empty where it counts."""
        return self.spoilt or self.implausible

    def _impossible_stream(self) -> Iterator[str]:
        latency, ttft, itl = self.latency, self.ttft, self.itl
        for name, spread in (("latency", latency), ("TTFT", ttft), ("ITL", itl)):
            if spread is not None and not spread.ordered:
                yield f"the percentiles of its {name} are not in order"
        if ttft is None or itl is None:
            return
        if ttft.mean > SLACK * latency.mean:
            yield f"its TTFT of {_ms(ttft.mean)} exceeds the whole latency of {_ms(latency.mean)}"
        gaps = self.output_tokens - 1
        if gaps < SLACK - 1:
            return
        after = latency.mean - ttft.mean
        if itl.mean < FASTEST_TOKEN or after < gaps * FASTEST_TOKEN:
            within = f"{self.output_tokens:.4g} tokens arrived within {_ms(max(0.0, after))} of the first"
            yield f"{within} (ITL {_ms(itl.mean)}): no engine is as fast; answers arrive in one piece"
        fixed = _FIXED_SCENARIO.fullmatch(self.scenario)
        if fixed and self.output_tokens >= UNIFORM * int(fixed[1]) and not after / 2 <= gaps * itl.mean <= 2 * after:
            tokens = f"{self.output_tokens:.4g} tokens with an ITL of {_ms(itl.mean)}"
            yield f"{tokens} do not take the {_ms(after)} from TTFT to the end: some answers arrive in one piece"

    def _impossible_load(self) -> Iterator[str]:
        answered, allowed = self.requests - self.failed, self.concurrency * SLACK * (self.seconds + START_AND_END)
        if answered * self.latency.mean > allowed:
            yield (
                f"{answered} requests of {_ms(self.latency.mean)}, {self.concurrency} at a time, do not fit into its"
                f" {self.seconds:.4g} s"
            )
        if self.requests_rate * self.seconds > SLACK * answered + 1:
            yield f"{self.requests_rate:.4g} requests/s for {self.seconds:.4g} s are more than its {answered} requests"
        tokens = self.requests_rate * self.output_tokens
        if self.output_rate > SLACK * tokens + 1:
            yield f"{self.output_rate:.4g} output tokens/s are more than its requests have ({tokens:.4g})"


_FIXED_SCENARIO = re.compile(r"D\(\d{1,12},(\d{1,12})\)")


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"


class MeasurementReport(_Value):
    """How a measurement ended. ``results`` is where its files are; ``reason`` is one word for a condition."""

    outcome: Literal["Measured", "Failed"]
    reason: str = ""
    message: str = ""
    retryable: bool = False
    results: str = ""
    run: MeasuredRun | None = None
