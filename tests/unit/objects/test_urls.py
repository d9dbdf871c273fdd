"""URLs as people type them: one without a scheme is told what to add, wherever it is given."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from command_line import modelyard
from hypothesis import example, given, strategies as st
from pydantic import ValidationError
from urllib3.exceptions import LocationParseError
from urllib3.util import parse_url

from deployments.checks import settings_problems
from flows.parameters import AutoscaleParameters, ReplayParameters
from modelyard.metrics.prometheus.client import Prometheus, PrometheusError, PrometheusSettings
from modelyard.models.storage.settings import AllowedHosts
from modelyard.objects.urls import bare, describe_url_problem

WITHOUT_SCHEME = [
    "127.0.0.1:9090",
    "localhost:9090",
    "prometheus.monitoring:9090",
    "prometheus",
    "10.0.0.7:9090/prometheus",
    "[::1]:9090",
    "thanos-query.monitoring.svc.cluster.local",
]


@pytest.mark.parametrize("url", WITHOUT_SCHEME)
def test_a_url_without_scheme_is_told_to_add_one(url: str) -> None:
    assert describe_url_problem(url) == f"'{url}' has no scheme; add http://"
    assert describe_url_problem(f"http://{url}") is None, "which is then right"


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("https://prometheus.example.com:9090/a/b?c=d", None),
        ("http://user:secret@prometheus:9090", None),
        ("ftp://prometheus", "'ftp://prometheus' begins with ftp://; write http:// or https://"),
        ("htp://prometheus:9090", "'htp://prometheus:9090' begins with htp://; write http:// or https://"),
        ("http://", "'http:' names no host; write http://HOST[:PORT]"),
        ("http://:9090", "'http://:9090' names no host; write http://HOST[:PORT]"),
        ("http:/prometheus:9090", "'http:/prometheus:9090' is no URL; write http://HOST[:PORT]"),
        ("http://prometheus:99999", "'http://prometheus:99999' is no URL: Port out of range 0-65535; "),
        ("http://prometheus:port", "'http://prometheus:port' is no URL: Port could not be cast "),
        ("http://10.0.0.1\\@prometheus", "'http://prometheus' has a character that no host has; write http://HOST"),
        ("http://metadata%2einternal", "'http://metadata%2einternal' has a character that no host has; "),
        (
            "http://kubernetes.default\u3002svc",
            "'http://kubernetes.default\u3002svc' has a character that no host has; ",
        ),
        ("http://[fe80::1%25eth0]", "'http://[fe80::1%25eth0]' has a character that no host has; "),
        ("http://prome\ttheus", r"'http://prome\ttheus' has a character that no host has; "),
        ("", "'' is no URL; write http://HOST[:PORT]"),
        ("not a url", "'not a url' is no URL; write http://HOST[:PORT]"),
        ("user:secret@prometheus:9090", "'prometheus:9090' has no scheme; add http://"),
    ],
)
def test_what_is_wrong_with_a_url_is_said(url: str, problem: str | None) -> None:
    described = describe_url_problem(url)
    assert described is None if problem is None else described and described.startswith(problem)


@given(st.text(max_size=300))
def test_any_text_is_answered_in_one_short_line_without_its_password(text: str) -> None:
    problem = describe_url_problem(text)
    assert problem is None or ("\n" not in problem and len(problem) < 400)
    secret = describe_url_problem(f"user:s3cret@{text}")
    assert secret is None or "s3cret" not in secret or "s3cret" in text


@given(st.from_regex(r"https?://[a-z0-9.@:;%\\\\?#/\t\u3002\uff41\[\] -]{1,40}", fullmatch=True))
@example("https://10.0.0.1\\@github.com/x")
@example("https://10.0.0.1\\/@github.com/x")
@example("https://a.metadata\u3002internal/")
def test_the_host_that_is_checked_is_the_one_that_is_asked(url: str) -> None:
    if describe_url_problem(url) is None:
        with suppress(LocationParseError):  # nothing is asked then
            asked = (parse_url(url).host or "").strip("[]")
            assert asked.lower() == urlsplit(url).hostname


PROMETHEUS = (
    ("plan",),
    ("plan", "-n", "chat", "-o", "json"),
    ("autoscale", "--once"),
    ("replay", "-n", "chat", "--model", "m"),
)


@pytest.mark.parametrize("command", PROMETHEUS)
@pytest.mark.parametrize("url", ["127.0.0.1:9090", "prometheus.monitoring:9090"])
def test_every_command_with_prometheus_says_add_http(command: tuple[str, ...], url: str) -> None:
    done = modelyard(*command, "--prometheus", url)
    assert done.code == 2, "nothing was done"
    assert re.fullmatch(rf"error: --prometheus:? '{re.escape(url)}' has no scheme(;| -) add http://\n", done.err)


@pytest.mark.parametrize("model", [AutoscaleParameters, ReplayParameters])
def test_flow_parameters_with_prometheus_say_add_http(model: type[AutoscaleParameters]) -> None:
    with pytest.raises(ValidationError, match="has no scheme; add http://"):
        model.model_validate({"prometheus_url": "prometheus:9090"})


def test_flows_run_by_hand_name_the_parameter() -> None:
    done = modelyard("run", "autoscale", "--parameters", json.dumps({"prometheus_url": "localhost:9090"}))
    assert (done.code, done.err) == (2, "error: prometheus_url: 'localhost:9090' has no scheme - add http://\n")


def test_the_environment_is_named_where_it_has_the_url() -> None:
    with pytest.raises(PrometheusError, match=r"^PROMETHEUS_BASE_URL 'localhost:9090' has no scheme; add http://$"):
        Prometheus(PrometheusSettings(base_url="localhost:9090"))


@pytest.mark.parametrize("command", [("run", "deliver", "--parameters", '{"name": "m"}'), ("bootstrap",), ("worker",)])
def test_every_command_with_a_prefect_server_says_add_http(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    from prefect.settings import PREFECT_API_URL, temporary_settings

    monkeypatch.setenv("PREFECT_API_URL", "127.0.0.1:4200/api")
    with temporary_settings({PREFECT_API_URL: "127.0.0.1:4200/api"}):
        done = modelyard(*command)
        assert settings_problems() == ["PREFECT_API_URL '127.0.0.1:4200/api' has no scheme; add http://"]
    assert done.code == 1
    assert "PREFECT_API_URL '127.0.0.1:4200/api' has no scheme; add http://" in done.err


def test_an_engine_beside_adapters_is_a_url(tmp_path: Path) -> None:
    done = modelyard("node", "adapters", "--list", tmp_path / "l", "--root", tmp_path, "--engine", "127.0.0.1:8000")
    assert (done.code, done.err) == (2, "error: --engine '127.0.0.1:8000' has no scheme; add http://\n")


@pytest.mark.parametrize("endpoint", ["minio:9000", "127.0.0.1:9000"])
def test_an_endpoint_of_a_bucket_is_a_url(endpoint: str) -> None:
    problem = AllowedHosts((endpoint,), "the settings").refusal(endpoint, "fetched from")
    assert problem == f"endpoint '{endpoint}' has no scheme; add http://"


def test_user_and_password_are_not_shown() -> None:
    assert bare("https://user:pass@host:1/x/") == "https://host:1/x"
