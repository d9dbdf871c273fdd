"""The configuration file of a router, and its change while the router runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from modelyard.router.process.configured import ConfigurationFile, Configured
from modelyard.router.process.limits import LocalLimits
from modelyard.routing.configuration import AuthSettings, RedisSettings, RouterConfiguration, read_configuration
from modelyard.routing.errors import unauthorized
from modelyard.routing.plugins import Configuration
from modelyard.routing.seams import Principal

WHOLE = """
scheduler:
  plugins: {Filter: {enabled: []}, Score: {enabled: [{name: gpu-usage, weight: 2}]}}
modelServers:
  shop/a: {scheduler: {pluginConfig: [{name: prefix-cache, args: {blockSizeToHash: 256}}]}}
auth: {issuer: "https://issuer", audiences: [a, b], jwksUri: "https://issuer/keys", modelsClaim: models}
redis: {servers: {"redis:6379": "rediss://:secret@redis:6379/1"}, onFailure: deny}
fairness: {enabled: true, maxConcurrent: 64, outputTokenWeight: 3}
"""


def test_a_file_is_read_whole() -> None:
    found = read_configuration(WHOLE)
    assert found.scheduler.of("shop/b").scores == (("gpu-usage", 2.0),)
    assert found.scheduler.of("shop/a").block_size == 256
    assert found.auth == AuthSettings(
        issuer="https://issuer", audiences=("a", "b"), jwks_uri="https://issuer/keys", models_claim="models"
    )
    assert found.redis == RedisSettings(servers={"redis:6379": "rediss://:secret@redis:6379/1"}, on_failure="deny")
    assert (found.fairness.cost(5, 2), found.fairness.concurrent, found.fairness.rate) == (11.0, 64, 0.0)
    assert read_configuration("") == RouterConfiguration() == read_configuration("auth:\nfairness: {}")
    assert RouterConfiguration().scheduler == Configuration()
    assert not RouterConfiguration().auth.enabled
    assert (RouterConfiguration().fairness.concurrent, RouterConfiguration().fairness.rate) == (0, 0.0)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("scheduler: {plugins: {Score: {enabled: [{name: kv-cache}]}}}", "kv-cache"),
        (
            "modelServers: {shop/llama: {scheduler: {plugins: {Score: {enabled: [{name: kvcache-aware}]}}}}}",
            r"modelServers\[shop/llama\].scheduler.plugins.Score: 'kvcache-aware' is not available",
        ),
        ("schedular: {}", "schedular"),
        ("auth: {jwksURI: x}", r"auth\.jwksURI"),
        ("auth: {jwksUri: 'file:///etc/passwd'}", r"auth\.jwksUri.*http"),
        ("auth: {audiences: a}", r"auth\.audiences"),
        ("auth: {refreshSeconds: .nan}", r"auth\.refreshSeconds"),
        ("auth: [1]", "auth"),
        ("redis: {onFailure: panic}", r"redis\.onFailure"),
        ("fairness: {enabled: 'yes'}", r"fairness\.enabled"),
        ("fairness: {windowSeconds: 5}", r"fairness\.windowSeconds"),
        ("fairness: {inputTokenWeight: -1}", r"fairness\.inputTokenWeight"),
        ("[1]", "not a mapping"),
        ("a: [", "not YAML"),
        ("[" * 5000, "not YAML"),
    ],
)
def test_a_bad_file_is_refused_with_the_field(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        read_configuration(text)


async def test_a_change_takes_effect_and_a_bad_one_does_not(tmp_path: Path) -> None:
    path = tmp_path / "routerConfiguration.yaml"
    with pytest.raises(OSError, match="routerConfiguration"):
        ConfigurationFile(path)
    path.write_text("auth: 5")
    with pytest.raises(ValueError, match="auth"):
        ConfigurationFile(path)
    path.write_text("")
    file, chosen = ConfigurationFile(path), list[Configuration]()
    ours = Configured(file, LocalLimits(), chosen.append)
    assert await ours.admission.authenticate({}) == Principal()

    async def until(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(120):
            while not condition():
                await asyncio.sleep(0.01)

    async with ours.running(dict, lambda _: None, 0.01):
        path.write_text("fairness: {enabled: maybe}")
        await until(lambda: "fairness" in file.problem)
        path.write_text(f"auth: {{apiKeysDirectory: {tmp_path}/none}}")
        await until(lambda: "none" in file.problem)
        assert (ours.value, len(chosen)) == (RouterConfiguration(), 1)
        (tmp_path / "keys").mkdir()
        (tmp_path / "keys/ann").write_text("secret")
        path.write_text(
            f"auth: {{apiKeysDirectory: {tmp_path}/keys}}\nscheduler: {{plugins: {{Filter: {{enabled: []}}}}}}"
        )
        await until(lambda: not file.problem)
        assert chosen[-1].default.filters == ()
        assert (await ours.admission.authenticate({})) == unauthorized("Authorization header missing or invalid")
        found = await ours.admission.authenticate({"authorization": "Bearer secret"})
        assert isinstance(found, Principal)
        assert found.subject == "ann"
        path.unlink()
        await until(lambda: bool(file.problem))
        assert chosen[-1].default.filters == ()
