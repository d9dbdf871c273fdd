"""What a service is made of: complete Kubernetes objects, or a refusal that names field and remedy. No I/O."""

from modelyard.workloads.components import references as references
from modelyard.workloads.files import ServedModel as ServedModel, served as served
from modelyard.workloads.render import render as render
from modelyard.workloads.settings import ServingSettings as ServingSettings
from modelyard.workloads.values import (
    Abilities as Abilities,
    Refused as Refused,
    Rendered as Rendered,
    canonical as canonical,
)
