"""Kubernetes objects read as values of the fleet: variants, their annotations, demand and predictions. Pure."""

from modelyard.autoscaling.reading import observe
from modelyard.autoscaling.reading.demands import (
    at_zero,
    count_windows,
    needs_loads,
    sized_namespaces,
    token_namespaces,
    wake_expressions,
    workload_of,
)
from modelyard.autoscaling.reading.managed import (
    KINDS,
    MANAGED,
    AnnotationInvalid,
    gauge_remarks,
    is_managed,
    target_of,
    variant_manifest,
)
from modelyard.autoscaling.reading.prediction import ANNOTATION, prediction_text, read_prediction
