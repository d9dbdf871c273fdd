"""How to reach the API server and how long to wait for it."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field


class ClusterSettings(BaseModel):
    """Connection, timeouts and retries of one cluster connection. All times are seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kubeconfig: Path | None = Field(
        None, description="kubeconfig file; unset: KUBECONFIG, then ~/.kube/config, then the pod's own service account"
    )
    context: str | None = Field(None, description="kubeconfig context; unset: the file's current context")
    field_manager: str = Field("modelyard", min_length=1, description="name under which fields are owned")
    connect_timeout: float = Field(5, gt=0, description="limit for opening one connection")
    idle_timeout: float = Field(60, gt=0, description="how long an unused connection is kept for the next request")
    request_timeout: float = Field(15, gt=0, description="limit for one try of an ordinary request")
    page_timeout: float = Field(60, gt=0, description="limit for one try of reading one page of a list")
    call_timeout: float = Field(30, gt=0, description="limit for an ordinary call with all its retries")
    list_timeout: float = Field(120, gt=0, description="limit for a whole list with all its pages and retries")
    retry_steps: int = Field(5, ge=1, description="tries of a request that may be repeated, the first included")
    retry_delay: float = Field(0.1, gt=0, description="pause before the first repetition")
    retry_factor: float = Field(2.0, ge=1, description="growth of the pause from one repetition to the next")
    retry_jitter: float = Field(0.1, ge=0, description="random share added to each pause")
    page_size: int = Field(500, ge=0, description="objects per page of a consistent list; 0: everything in one page")
    watch_timeout: float = Field(120, gt=0, description="life of one watch connection, after which it is renewed")
    watch_retry_max: float = Field(5, gt=0, description="longest pause between two tries to reconnect a watch")
    watch_patience: float = Field(
        30, ge=0, description="how long a reconnecting watch bears 401, 403 and 404, which a starting server gives"
    )
    discovery_interval: float = Field(
        3, ge=0, description="an unknown kind makes discovery read anew at most this often"
    )
    credentials_interval: float = Field(
        10, ge=0, description="refused credentials make the kubeconfig or token file be read anew at most this often"
    )
    event_window: float = Field(3600, gt=0, description="a repeated Event within this time only raises its count")
    max_connections: int = Field(500, ge=1, description="connections kept to the server; each open watch takes one")
    compression: bool = Field(
        False, description="ask for gzip: less traffic over slow networks, several times slower on fast ones"
    )
