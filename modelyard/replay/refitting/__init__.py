"""Check a stored performance profile against new measurements, and replace it where it has drifted."""

from modelyard.replay.refitting.refit import ProfileDrift, drift_of
from modelyard.replay.refitting.refit_variant import refit_variant
