"""Fit the performance profile of an engine to measured runs with the simulated engine. Pure."""

from modelyard.profiles.fitting.closed_loop import PredictedPoint
from modelyard.profiles.fitting.engine_fit import TOKENS, FittedProfile, fit_engine, fit_profile, predicted
