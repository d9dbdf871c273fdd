"""Replicas from load, latency targets and a performance profile: the SLO form's, or the one that was learnt."""

from modelyard.autoscaling.variants.slo import conditions, forecasting
from modelyard.autoscaling.variants.slo.aim import HOPELESS
from modelyard.autoscaling.variants.slo.capacity import share_capacity
from modelyard.autoscaling.variants.slo.forecasting import Forecasting, forecast_loads
from modelyard.autoscaling.variants.slo.load import MeasuredLoad, unsized
from modelyard.autoscaling.variants.slo.outlook import Mix, Model, Outlook, is_foreseeable, mix_of, predicted
from modelyard.autoscaling.variants.slo.reading import read_objectives
from modelyard.autoscaling.variants.slo.sizing import Row, predict, profiles_of, size_all, targets_of, with_sizing
from modelyard.autoscaling.variants.slo.strategy import FOUND, LatencyTargets
