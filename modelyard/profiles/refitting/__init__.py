"""Check a stored performance profile against new measurements, and replace it where it has drifted."""

from modelyard.profiles.refitting.refit import ProfileDrift, drift_of
from modelyard.profiles.refitting.refit_variant import refit_variant
