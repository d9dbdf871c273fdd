"""The queueing model of one replica: predicted latency at a rate, and the highest rate within latency targets."""

from modelyard.autoscaling.sizing import stalls
from modelyard.autoscaling.sizing.answers import Sizing, Targets
from modelyard.autoscaling.sizing.chain import HIGHEST, LOWEST, Measures, analyse, analysed, chain_of, measured
from modelyard.autoscaling.sizing.experiment import PlannedRun, doubt, next_run, promised
from modelyard.autoscaling.sizing.fit import Fit, FitError, Parameter, Point, RunWork, check, fit
from modelyard.autoscaling.sizing.learning import LEAST, MOST_BATCH, OVERHEAD, LearntSpeed, SpeedObservation, observe
from modelyard.autoscaling.sizing.percentile import ttft_percentile
from modelyard.autoscaling.sizing.profiles import BoolArray, FloatArray, IntArray, Profiles
from modelyard.autoscaling.sizing.sizes import TPS_SHARE, assembled, binding_of, by_block, size
from modelyard.autoscaling.sizing.stalls import Sizes, Speed, per_request, sizes_of
from modelyard.autoscaling.sizing.states import Occupancy
from modelyard.autoscaling.sizing.within import NEAREST, BlockSolution
