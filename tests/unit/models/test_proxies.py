"""HTTPS proxies of the environment: which address is one, which requests use it, and what it may not be asked for."""

from __future__ import annotations

from typing import Any

import pytest
from model_world import Cluster, model

from modelyard.models.sources import check_host
from modelyard.models.sources.proxies import HttpsProxy, read_proxy
from modelyard.models.storage.errors import FetchError
from modelyard.models.storage.settings import DeliverySettings

PROXY = "http://proxy.example.com:3128"


@pytest.mark.parametrize(
    ("environ", "host", "port"),
    [
        ({"HTTPS_PROXY": PROXY}, "proxy.example.com", 3128),
        ({"https_proxy": PROXY}, "proxy.example.com", 3128),
        ({"https_proxy": PROXY, "HTTPS_PROXY": "http://other:1"}, "proxy.example.com", 3128),
        ({"https_proxy": "", "HTTPS_PROXY": PROXY}, "proxy.example.com", 3128),
        ({"HTTPS_PROXY": "proxy.example.com:3128"}, "proxy.example.com", 3128),
        ({"HTTPS_PROXY": "http://10.0.0.7/"}, "10.0.0.7", 80),
        ({"HTTPS_PROXY": "http://[fd00::7]:3128"}, "fd00::7", 3128),
    ],
)
def test_the_environment_names_a_proxy(environ: dict[str, str], host: str, port: int) -> None:
    proxy = read_proxy(environ)
    assert proxy is not None
    assert (proxy.host, proxy.port) == (host, port)
    assert proxy.serves("https://huggingface.co/o/m")


@pytest.mark.parametrize("environ", [{}, {"HTTPS_PROXY": " "}, {"HTTP_PROXY": PROXY}, {"ALL_PROXY": PROXY}])
def test_no_other_variable_names_one(environ: dict[str, str]) -> None:
    assert read_proxy(environ) is None


@pytest.mark.parametrize(
    "text",
    [
        "socks5://p:1080",
        "https://p:3128",
        "http://",
        "http://p:x",
        "http://p/path",
        "http://p:1?q",
        "ftp://p",
        "http://[::1",
    ],
)
def test_an_address_that_is_no_proxy_is_refused_with_the_remedy(text: str) -> None:
    with pytest.raises(
        FetchError, match=r"HTTPS_PROXY .* is no address of an HTTP proxy; write http://HOST:PORT"
    ) as refused:
        read_proxy({"HTTPS_PROXY": text})
    assert (refused.value.reason, refused.value.retryable) == ("ProxyInvalid", False)


def test_its_password_is_sent_to_it_and_shown_nowhere() -> None:
    proxy = read_proxy({"HTTPS_PROXY": "http://user%40corp:very%3Asecret@proxy:3128"})
    assert proxy is not None
    assert proxy.headers == {"Proxy-Authorization": "Basic dXNlckBjb3JwOnZlcnk6c2VjcmV0"}
    assert "secret" not in proxy.url + str(proxy.refusal("h", "407 Proxy Authentication Required"))
    with pytest.raises(FetchError) as refused:
        read_proxy({"HTTPS_PROXY": "socks5://user:verysecret@proxy:1"})
    assert "verysecret" not in str(refused.value)


@pytest.mark.parametrize(
    ("exceptions", "url", "served"),
    [
        ("", "https://a.example.com", True),
        ("", "http://a.example.com", False),
        ("*", "https://a.example.com", False),
        ("a.example.com", "https://a.example.com", False),
        ("A.Example.com.", "https://a.example.com.", False),
        ("example.com", "https://a.example.com", False),
        (".example.com", "https://a.example.com:8443", False),
        ("*.example.com", "https://a.example.com", False),
        ("ample.com", "https://a.example.com", True),
        ("x, a.example.com:443", "https://a.example.com", False),
        ("x a.example.com:8443", "https://a.example.com", True),
        ("10.0.0.0/8", "https://10.2.3.4:9000", False),
        ("10.0.0.0/8", "https://11.2.3.4:9000", True),
        ("10.2.3.4", "https://10.2.3.4", False),
        ("10.2.3.4:9000", "https://10.2.3.4:9000", False),
        ("fd00::/8", "https://[fd00::5]/x", False),
        ("[fd00::5]", "https://[fd00::5]/x", False),
        (",, ,", "https://a.example.com", True),
        ("not a/network,1.2.3/99", "https://a.example.com", True),
    ],
)
def test_no_proxy_names_hosts_domains_networks_and_ports(exceptions: str, url: str, served: bool) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        proxy = read_proxy({"HTTPS_PROXY": PROXY, name: exceptions})
        assert proxy is not None
        assert proxy.serves(url) is served


@pytest.mark.parametrize(
    ("answer", "reason", "retryable"),
    [
        ("HTTP/1.1 403 Forbidden", "ProxyRefused", False),
        ("Tunnel connection failed: 407 Proxy Authentication Required", "ProxyRefused", False),
        ("HTTP/1.1 429 Too Many Requests", "SourceUnavailable", True),
        ("HTTP/1.1 503 Service Unavailable", "SourceUnavailable", True),
        ("closed the connection", "SourceUnavailable", True),
    ],
)
def test_a_proxy_that_refuses_is_named_with_the_remedy(answer: str, reason: str, retryable: bool) -> None:
    error = HttpsProxy("proxy", 3128).refusal("files.example.com", answer)
    assert (error.reason, error.retryable) == (reason, retryable)
    assert "proxy http://proxy:3128 opens no connection to files.example.com" in str(error)
    assert "; " in str(error)


@pytest.mark.parametrize(
    ("url", "public", "allowed"),
    [
        ("https://169.254.169.254/latest", False, False),
        ("https://[::ffff:169.254.169.254]/", False, False),
        ("https://metadata.google.internal/computeMetadata", False, False),
        ("https://metadata.google.internal./computeMetadata", True, False),
        ("https://10.0.0.1/", True, False),
        ("https://10.0.0.1/", False, True),
        ("https://minio.storage.svc/", True, False),
        ("https://intranet/", True, False),
        ("https://files.corp.internal/", True, False),
        (r"https://10.0.0.1\@files.invalid/", True, False),
        (r"https://kubernetes.default.svc\@files.invalid/", False, False),
        ("https://a.metadata\u3002google\u3002internal/", True, False),
        ("https://metadata.google.internal%2e/", False, False),
        ("https://files.invalid/", True, True),
    ],
)
def test_what_a_proxy_is_not_asked_for(url: str, public: bool, allowed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that this machine cannot resolve are judged by the name alone."""
    monkeypatch.setenv("HTTPS_PROXY", PROXY)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    if allowed:
        check_host(url, public)
        return
    with pytest.raises(FetchError) as refused:
        check_host(url, public)
    assert (refused.value.reason, refused.value.retryable) == ("UnsupportedSource", False)


def variables(job: dict[str, Any]) -> dict[str, str]:
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return {entry["name"]: entry["value"] for entry in container["env"]}


def test_jobs_use_the_proxy_that_an_administrator_names_and_no_other() -> None:
    for text, proxy in (("", None), (f"httpsProxy: {PROXY}\nnoProxy: [minio.example.com, 10.0.0.0/8]", PROXY)):
        cluster = Cluster("a", settings=text)
        cluster.settle(
            cluster.put("BaseModel", model("m", "chat", "s3://bucket/m", parameters={"httpsProxy": "http://x:1"}))
        )
        (job,) = cluster.jobs().values()
        env = variables(job)
        for name in ("HTTPS_PROXY", "https_proxy"):
            assert env.get(name) == proxy
        if proxy:
            assert env["NO_PROXY"] == env["no_proxy"]
            found = read_proxy(env)
            assert found is not None
            assert found.serves("https://bucket.s3.eu-west-1.amazonaws.com")
            for direct in (
                "minio.example.com",
                "10.1.2.3",
                "minio.storage.svc",
                "a.b.svc.cluster.local",
                "169.254.169.254",
            ):
                assert not found.serves(f"https://{direct}:9000"), direct


def test_a_claim_is_looked_at_without_the_proxy() -> None:
    cluster = Cluster("a", settings=f"httpsProxy: {PROXY}")
    claim = {"metadata": {"name": "c", "namespace": "chat", "uid": "u"}, "status": {"phase": "Bound"}}
    cluster.put("PersistentVolumeClaim", claim)
    cluster.settle(cluster.put("BaseModel", model("m", "chat", "pvc://c/m")))
    (job,) = cluster.jobs().values()
    assert "HTTPS_PROXY" not in variables(job), "that Job is in the tenant's namespace"


@pytest.mark.parametrize(
    "text",
    [
        "httpsProxy: http://user:password@proxy:3128",
        "httpsProxy: socks5://proxy:1080",
        "httpsProxy: proxy",
        "httpsProxy: http://proxy",
        'httpsProxy: "http://proxy:3128/x"',
        'noProxy: ["a,b"]',
        'noProxy: ["a b"]',
    ],
)
def test_settings_take_a_plain_address_alone(text: str) -> None:
    settings, problem = DeliverySettings.read(text)
    assert settings.proxy_environment == {}
    assert problem is not None
    assert text.partition(":")[0] in problem
    if "password" in text:
        assert "write http://HOST:PORT, without user and password" in problem
