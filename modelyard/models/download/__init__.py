"""Work of a Job on a node: download, verify and remove a model's files."""

from modelyard.models.download import node
from modelyard.models.download.filters import FileRules
from modelyard.models.download.node import FetchRequest, Progress, Report, bring_settled
from modelyard.models.download.store import ModelRecord, NodeStore, storage_error
