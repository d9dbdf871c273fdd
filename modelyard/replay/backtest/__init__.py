"""Back-testing: replay a trace with every policy, judge it by its targets, and report the comparison."""

from modelyard.replay.backtest import output
from modelyard.replay.backtest.compare import Batch, BatchResult, batches, least, replay
from modelyard.replay.backtest.gates import RequirementsNotMet, parse, unmet_requirements
from modelyard.replay.backtest.history import requested_past
from modelyard.replay.backtest.output import REPORT, write_report
from modelyard.replay.backtest.report import Summary
from modelyard.replay.backtest.scenario import Scenario, read_scenario
from modelyard.replay.backtest.steady import steady, steady_load
from modelyard.replay.backtest.summary_table import in_short, row
