"""What a service is made of: complete Kubernetes objects, or a refusal that names field and remedy. No I/O."""

from modelyard.workloads.components import references
from modelyard.workloads.files import ServedModel, served
from modelyard.workloads.render import render
from modelyard.workloads.settings import ServingSettings
from modelyard.workloads.values import (
    Abilities,
    Refused,
    Rendered,
    canonical,
)
