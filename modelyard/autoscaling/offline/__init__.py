"""A fleet from files instead of a cluster."""

from modelyard.autoscaling.offline import fleet, snapshot
from modelyard.autoscaling.offline.bindings import is_ours, measured, nowhere
from modelyard.autoscaling.offline.fleet import fleet_from_files
from modelyard.autoscaling.offline.manifests import Manifest, read_manifests
from modelyard.autoscaling.offline.snapshot import Snapshot
