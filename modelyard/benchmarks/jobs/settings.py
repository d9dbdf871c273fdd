"""What an administrator says about benchmarks: the ConfigMap ``benchmarkjob-config``, key ``benchmarkjob``. Pure.

It is read in the controller's namespace, where tenants do not write.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from modelyard.models.storage import LOCAL_IMAGE, AllowedHosts, read_settings

CONFIG_MAP, KEY = "benchmarkjob-config", "benchmarkjob"


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=to_camel, populate_by_name=True)


class PodConfig(_Document):
    """The pods that measure."""

    image: str = Field(LOCAL_IMAGE, description="image with Modelyard and the benchmark program")
    cpu_request: str = "2"
    memory_request: str = "2Gi"
    cpu_limit: str = "2"
    memory_limit: str = "2Gi"
    storage_limit: str = Field("20Gi", description="disk of a node for one pod: its data set, its files, its log")


class BenchmarkSettings(_Document):
    """What holds for every BenchmarkJob."""

    pod_config: PodConfig = PodConfig()
    endpoints: list[str] = Field(
        default_factory=list,
        description="hosts (HOST, HOST:PORT, or with * for a part) that spec.endpoint.endpoint may name beside services"
        " of the job's namespace; exactly named, they may be internal",
    )

    @classmethod
    def read(cls, text: str | None) -> tuple[BenchmarkSettings, str | None]:
        """The settings, and what is wrong with them: of a document that cannot be used, nothing is."""
        return read_settings(cls, text, CONFIG_MAP, KEY)

    @property
    def hosts(self) -> AllowedHosts:
        """The hosts that may be named."""
        return AllowedHosts(tuple(self.endpoints), f"endpoints in ConfigMap {CONFIG_MAP}, key {KEY}")
