"""Results of benchmark runs as values, and how the load program and its records are understood. Pure."""

from modelyard.benchmarks.records import program, records
from modelyard.benchmarks.records.charts import data_urls, draw, trend
from modelyard.benchmarks.records.preflight import (
    check_measurement,
    check_output,
    check_request_parameters,
    check_scenario,
)
from modelyard.benchmarks.records.profile_patch import patch
from modelyard.benchmarks.records.program import OF_IMAGES, VERSION, MeasureError, secrets, unsent_parameters, without
from modelyard.benchmarks.records.records import IMPLAUSIBLE
from modelyard.benchmarks.records.token_limits import FEWEST_OUTPUT_TOKENS, MOST_TOKENS
from modelyard.benchmarks.records.values import (
    DATASET_TOKEN,
    LARGEST_FILE,
    MEASUREMENT,
    DatasetAccess,
    LatencySpread,
    MeasuredRun,
    MeasuredServer,
    Measurement,
    MeasurementReport,
    Output,
)
