"""Measuring: run the load program in a pod, store its results, read and compare them."""

from modelyard.benchmarks.measuring import compare, measure
from modelyard.benchmarks.measuring.compare import (
    LATENCIES,
    METRICS,
    ComparedRuns,
    changes,
    figure,
    pairs,
    parse_condition,
    tripped,
)
from modelyard.benchmarks.measuring.profiles import (
    LIBRARY,
    LibraryProfile,
    ProfileKey,
    described,
    library_patch,
    patch,
    points,
    read_library,
)
from modelyard.benchmarks.measuring.results import BenchmarkResults, kept, load
