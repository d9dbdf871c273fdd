"""Scalers in files that are annotated for the later llm-d autoscaler: the variants that they describe."""

from __future__ import annotations

from collections.abc import Iterable

from modelyard.autoscaling.configuration import PlanInputError
from modelyard.autoscaling.offline.manifests import Manifest, manifest
from modelyard.autoscaling.reading import (
    KINDS,
    MANAGED,
    AnnotationInvalid,
    gauge_remarks,
    is_managed,
    target_of,
    variant_manifest,
)
from modelyard.objects import WorkloadId, annotations_of, shown

CONVERT = "the controller acts on it once 'modelyard convert -f' has written its VariantAutoscaling"


def managed_variants(manifests: Iterable[Manifest]) -> tuple[list[Manifest], list[str]]:
    """Return the variants of annotated scalers, and what to know of each scaler.

    A VariantAutoscaling for the same workload wins, then a ScaledObject. Raises ``PlanInputError``.
    """
    everything = list(manifests)
    described: dict[WorkloadId | None, str] = {
        target_of(entry.key.namespace, entry.body): str(entry)
        for entry in everything
        if entry.kind == "VariantAutoscaling"
    }
    variants: list[Manifest] = []
    remarks = [
        f'{entry}: annotation {MANAGED} is {shown(value)} and has no effect; write "true"'
        for entry in everything
        if entry.kind in KINDS and (value := annotations_of(entry.body).get(MANAGED, "true")) != "true"
    ]
    scalers = [entry for entry in everything if is_managed(entry.body)]
    for scaler in sorted(scalers, key=lambda entry: list(KINDS).index(entry.kind)):
        target = target_of(scaler.key.namespace, scaler.body)
        if (winner := described.get(target)) is not None:
            remarks.append(f"{scaler}: its annotations have no effect: {winner} has the same workload {target}")
            continue
        try:
            body = variant_manifest(scaler.body)
        except AnnotationInvalid as error:
            raise PlanInputError(f"{scaler}: {error}") from error
        described[target] = str(scaler)
        variants += manifest(scaler.where, body)
        remarks.append(f"{scaler}: planned as the VariantAutoscaling that its annotations describe; {CONVERT}")
        remarks += (f"{scaler}: {remark}" for remark in gauge_remarks(scaler.body))
    return variants, remarks
