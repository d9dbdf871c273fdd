"""Everything that a router's configuration file says: one immutable value, read as a whole or refused as a whole.

Pure. ``scheduler`` and ``modelServers`` are in ``plugins``. Source: kthena-routing, 11 and 17.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from modelyard.objects import check_http_url
from modelyard.routing.plugins import Configuration, configuration

_OWN = ("auth", "redis", "fairness")
S = TypeVar("S", bound="Section")


class Section(BaseModel):
    """A section of the file: names in camelCase, nothing unknown, nothing converted."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, alias_generator=to_camel, populate_by_name=True)


class AuthSettings(Section):
    """Who may ask. Without ``jwks_uri`` and ``api_keys_directory`` everybody may.

    ``api_keys_directory`` is a mounted Secret: a file for each subject with its key. ``models_claim`` is the claim that
    lists the models a token's holder may use; empty: all. ``forward_token``: engines get the header too.
    """

    issuer: str = ""
    audiences: tuple[str, ...] = Field((), strict=False)
    jwks_uri: Annotated[str, AfterValidator(check_http_url)] | None = None
    refresh_seconds: float = Field(3600.0, ge=60, le=7 * 86_400)
    api_keys_directory: str = ""
    models_claim: str = ""
    forward_token: bool = False

    @property
    def enabled(self) -> bool:
        """Whether anybody has to say who they are."""
        return bool(self.jwks_uri or self.api_keys_directory)


class RedisSettings(Section):
    """Redis servers that replicas count in: URLs, credentials included, by ``host:port`` as ModelRoutes name them.

    ``in_flight`` is the address of the one through which replicas tell each other what they have under way.
    """

    servers: Mapping[str, str] = {}
    on_failure: Literal["local", "allow", "deny"] = "local"
    in_flight: str = ""


class FairnessSettings(Section):
    """Order of a model's requests. ``max_concurrent``: most requests of a model at once; 0: as many as ``max_qps``, the
    most that begin in a second, allows (0: any number). One of ``oldest_every`` goes to who waited longest."""

    enabled: bool = False
    window_seconds: float = Field(300.0, ge=60, le=3600)
    input_token_weight: float = Field(1.0, ge=0, le=1e6)
    output_token_weight: float = Field(2.0, ge=0, le=1e6)
    priority_token_weight: float = Field(1.0, ge=0, le=1e6)
    priority_request_num_weight: float = Field(0.0, ge=0, le=1e6)
    max_concurrent: int = Field(0, ge=0)
    max_qps: float = Field(100.0, ge=0, le=1e6)
    oldest_every: int = Field(8, ge=1, le=1000)
    max_waiting: int = Field(1000, ge=1, le=100_000)
    queue_timeout_seconds: float = Field(60.0, gt=0, le=3600)

    @property
    def concurrent(self) -> int:
        """Most requests of a model at once; 0: no such limit."""
        return self.max_concurrent if self.enabled else 0

    @property
    def rate(self) -> float:
        """Most requests of a model that begin in a second; 0: no such limit."""
        return self.max_qps if self.enabled and not self.max_concurrent else 0.0

    def cost(self, tokens_in: int, tokens_out: int) -> float:
        """Return the use of an answered request; negative numbers of tokens count as 0."""
        tokens = self.input_token_weight * max(0, tokens_in) + self.output_token_weight * max(0, tokens_out)
        return self.priority_token_weight * tokens + self.priority_request_num_weight


class RouterConfiguration(NamedTuple):
    """The whole file."""

    scheduler: Configuration = Configuration()
    auth: AuthSettings = AuthSettings()
    redis: RedisSettings = RedisSettings()
    fairness: FairnessSettings = FairnessSettings()


def read_configuration(text: str) -> RouterConfiguration:
    """Read the file. Raises ``ValueError`` naming the field; a caller that reloads keeps what it has then."""
    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"the configuration is not YAML: {error}") from error
    document = {} if document is None else document
    if not isinstance(document, Mapping):
        raise ValueError("the configuration is not a mapping")
    rest = {name: value for name, value in document.items() if name not in _OWN}
    return RouterConfiguration(
        scheduler=configuration(rest),
        auth=_section(AuthSettings, document, "auth"),
        redis=_section(RedisSettings, document, "redis"),
        fairness=_section(FairnessSettings, document, "fairness"),
    )


def _section(kind: type[S], document: Mapping[str, Any], name: str) -> S:
    try:
        return kind.model_validate(document.get(name) or {})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, (name, *first["loc"])))
        raise ValueError(f"{where}: {first['msg']}") from error
