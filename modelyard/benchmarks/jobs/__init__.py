"""The lifecycle of a BenchmarkJob: its runs, their Jobs and storage, and its status. Pure."""

from modelyard.benchmarks.jobs.lifecycle import BenchmarkRuns
from modelyard.benchmarks.jobs.story import benchmark_result, row
from modelyard.benchmarks.jobs.targets import is_of_namespace
from modelyard.benchmarks.jobs.world import BENCHMARK_JOBS, PROBE_OF, RE_RUN, EnginePod, Memory, benchmark, engine_pod
