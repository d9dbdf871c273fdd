"""The simulated fleet that policies are replayed on: pods, their metrics, and their start-up."""

from modelyard.replay.simulation.fleet import ScaleAction, SimulatedFleet, SimulatedResults
from modelyard.replay.simulation.metrics import Metrics, field_of
from modelyard.replay.simulation.pods import SimulatedPod
from modelyard.replay.simulation.signals import SignalReader
from modelyard.replay.simulation.variants import VariantSpec, variants_of
