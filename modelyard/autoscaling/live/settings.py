"""Connections, selection and settings of one run of the loop; the flow's parameter model embeds them."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, field_validator

from modelyard.autoscaling.configuration import FleetSettings
from modelyard.objects import check_http_url


class ControllerSettings(BaseModel):
    """Connections and selection of one autoscaling loop."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    namespaces: list[str] = Field(default_factory=list, description="only these namespaces; empty: all")
    label_selector: str = Field(
        "", description="only VariantAutoscalings and policy bindings with these labels (shards a large fleet)"
    )
    fleet: FleetSettings = Field(
        default_factory=lambda: FleetSettings(), description="settings of the decisions, dry_run among them"
    )
    prometheus_url: str | None = Field(
        None,
        description="base URL of Prometheus; unset: the environment variable PROMETHEUS_BASE_URL, the only server to "
        "which the credentials of the environment are sent",
    )
    prometheus_timeout: float = Field(10, gt=0, description="seconds one PromQL query may take")
    time_compression: float = Field(
        1.0, ge=1, description="divide every duration in `fleet` by this (demonstrations on the simulated engine only)"
    )

    @field_validator("prometheus_url")
    @classmethod
    def _is_url(cls, url: str | None) -> str | None:
        return url and check_http_url(url)
