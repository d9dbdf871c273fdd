"""Finds the cluster and its credentials: a kubeconfig or the pod's service account.

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
from kubernetes.aio import config
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config.config_exception import ConfigException

from modelyard.cluster.errors import NotConfigured
from modelyard.cluster.settings import ClusterSettings

DEFAULT_KUBECONFIG = Path("~/.kube/config")
_REMEDY = "name a kubeconfig in the settings or in the variable KUBECONFIG, or run inside a pod with a service account"


async def load_configuration(settings: ClusterSettings) -> tuple[Any, str]:
    """The client configuration and, for messages, where it came from. Raises ``NotConfigured``."""
    configuration = Configuration(connection_pool_maxsize=settings.max_connections)
    files, tried = _kubeconfig_files(settings)
    if files:
        source = f"kubeconfig {files}"
        try:
            async with asyncio.timeout(settings.call_timeout):  # it may run a credential plugin
                await config.load_kube_config(
                    config_file=files,
                    context=settings.context,
                    client_configuration=configuration,
                    persist_config=False,
                )
        except (ConfigException, yaml.YAMLError, OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            what = " ".join(str(error).split()) or type(error).__name__  # a TimeoutError has no text
            raise NotConfigured(
                f"{source} is not usable: {what}; check it with 'kubectl config view'", verb="connect"
            ) from error
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
    if _is_loopback(urlsplit(configuration.host).hostname or ""):
        session["trust_env"] = False  # as kubectl does: no HTTP(S)_PROXY on the way to this machine itself
    configuration.client_session_kwargs = session


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
