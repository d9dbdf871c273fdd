"""The settings of a connection; finds the cluster and its credentials: a kubeconfig or the pod's service account.

Parsing, tokens, client certificates and exec plugins are the ``kubernetes`` package's; what is ours is the order of
the places, and messages that say which of them were tried.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import yaml
from pydantic import BaseModel, ConfigDict, Field

from modelyard.cluster.errors import NotConfigured

DEFAULT_KUBECONFIG = Path("~/.kube/config")
_REMEDY = "name a kubeconfig in the settings or in the variable KUBECONFIG, or run inside a pod with a service account"


class ClusterSettings(BaseModel):
    """Connection, timeouts and retries of one cluster connection. All times are seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kubeconfig: Path | None = Field(
        None, description="kubeconfig file; unset: KUBECONFIG, then ~/.kube/config, then the pod's own service account"
    )
    context: str | None = Field(None, description="kubeconfig context; unset: MODELYARD_CONTEXT, then the current one")
    field_manager: str = Field("modelyard", min_length=1, description="name under which fields are owned")
    connect_timeout: float = Field(5, gt=0, description="limit for opening one connection")
    idle_timeout: float = Field(60, gt=0, description="how long an unused connection is kept for the next request")
    request_timeout: float = Field(15, gt=0, description="limit for one try of an ordinary request")
    page_timeout: float = Field(60, gt=0, description="limit for one try of reading one page of a list")
    call_timeout: float = Field(30, gt=0, description="limit for an ordinary call with all its retries")
    list_timeout: float = Field(120, gt=0, description="limit for a whole list with all its pages and retries")
    retry_steps: int = Field(5, ge=1, description="tries of a request that may be repeated, the first included")
    retry_delay: float = Field(0.1, gt=0, description="pause before the first repetition; each next one is twice that")
    page_size: int = Field(500, ge=0, description="objects per page of a consistent list; 0: everything in one page")
    watch_timeout: float = Field(120, gt=0, description="life of one watch connection, after which it is renewed")
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


async def load_configuration(settings: ClusterSettings) -> tuple[Any, str]:
    """The client configuration and, for messages, where it came from. Raises ``NotConfigured``."""
    from kubernetes.aio import config  # large: a command that needs no cluster loads without it
    from kubernetes.aio.client.configuration import Configuration
    from kubernetes.aio.config.config_exception import ConfigException

    configuration = Configuration(connection_pool_maxsize=settings.max_connections)
    files, tried = _kubeconfig_files(settings)
    context = settings.context or os.environ.get("MODELYARD_CONTEXT") or None
    if files:
        source = f"kubeconfig {files}"
        try:
            async with asyncio.timeout(settings.call_timeout):  # it may run a credential plugin
                await config.load_kube_config(
                    config_file=files, context=context, client_configuration=configuration, persist_config=False
                )
        except (ConfigException, yaml.YAMLError, OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            what = " ".join(str(error).split()) or type(error).__name__  # a TimeoutError has no text
            raise NotConfigured(
                f"{source} is not usable: {what}; check it with 'kubectl config view'", verb="connect"
            ) from error
    elif context:
        raise NotConfigured(
            f"the context {context!r} is asked for, and there is no kubeconfig. Tried: {'; '.join(tried)}. "
            "Name a kubeconfig in the variable KUBECONFIG",
            verb="connect",
        )
    else:
        source = "service account of the pod"
        try:
            config.load_incluster_config(client_configuration=configuration)
        except (ConfigException, OSError) as error:
            raise NotConfigured(
                f"no cluster is configured. Tried: {'; '.join(tried)}; {source} ({str(error).rstrip('.')}). {_REMEDY}",
                verb="connect",
            ) from error
    _adapt(configuration)
    return configuration, source


def _kubeconfig_files(settings: ClusterSettings) -> tuple[str, list[str]]:
    """The kubeconfig path (or path list) to load, ``""`` for none, and what was looked at."""
    if settings.kubeconfig is not None:
        path = settings.kubeconfig.expanduser()
        if not path.is_file():
            raise NotConfigured(f"the kubeconfig {path} of the settings does not exist; {_REMEDY}", verb="connect")
        return str(path), []
    variable = os.environ.get("KUBECONFIG", "")
    if variable:
        # A path list like kubectl's: files that do not exist are passed over, but one must be there.
        if not any(Path(part).expanduser().is_file() for part in variable.split(os.pathsep) if part):
            raise NotConfigured(f"KUBECONFIG={variable} names no existing file; correct or unset it", verb="connect")
        return variable, []
    default = DEFAULT_KUBECONFIG.expanduser()
    if default.is_file():
        return str(default), []
    return "", ["KUBECONFIG (not set)", f"{default} (does not exist)"]


def _adapt(configuration: Any) -> None:
    # Python 3.13 began to refuse certificates that lack optional extensions. Clusters have such ones and kubectl takes
    # them; the chain and the host name are still verified.
    configuration.disable_strict_ssl_verification = True
    session: dict[str, Any] = {"cookie_jar": aiohttp.DummyCookieJar()}
    if is_loopback(urlsplit(configuration.host).hostname or ""):
        session["trust_env"] = False  # as kubectl does: no HTTP(S)_PROXY on the way to this machine itself
    configuration.client_session_kwargs = session


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host of this name or address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
