"""The node agent: plays the kubelet of all Nodes of a local cluster, with processes instead of containers."""

from modelyard.local.agent.records import PodRecord, RecordStore
from modelyard.local.agent.services import REFUSED
