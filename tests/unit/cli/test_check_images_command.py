"""``modelyard runtimes check-images`` against a registry on this machine."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import Done, modelyard
from registry_server import DIGEST, Registry, serving


@pytest.fixture
def registry() -> Iterator[Registry]:
    with serving(Registry("vllm/vllm-openai:v0.11.0", "library/tiny:latest", f"a/b:{DIGEST}")) as found:
        yield found


def manifest(tmp_path: Path, *images: str) -> Path:
    path = tmp_path / "runtime.yaml"
    runners = [{"name": f"c{number}", "image": image} for number, image in enumerate(images)]
    spec = {"engineConfig": {"runner": runners[0], "containers": runners[1:]}}
    body = {"apiVersion": "ome.io/v1beta1", "kind": "ServingRuntime", "metadata": {"name": "r"}, "spec": spec}
    path.write_text(yaml.safe_dump(body), "utf-8")
    return path


def check(registry: Registry, path: Path, *arguments: object) -> Done:
    given = ("-f", path, "--registry", registry.address, "--insecure", *arguments)
    return modelyard("runtimes", "check-images", *given)


def states(done: Done) -> dict[str, Any]:
    return {row["image"]: row["state"] for row in json.loads(done.out)["images"]}


def test_images_that_exist_and_one_that_does_not(registry: Registry, tmp_path: Path) -> None:
    done = check(registry, manifest(tmp_path, "vllm/vllm-openai:v0.11.0", "tiny", f"a/b:x@{DIGEST}"))
    assert (done.code, done.err) == (0, "")
    assert done.out.count("exists") == 3
    assert DIGEST in done.out
    assert {method for method, *_ in registry.requests} == {"HEAD"}, "nothing is pulled"
    missing = check(registry, manifest(tmp_path, "vllm/vllm-openai:v0.11.0", "vllm/vllm-openai:v0.99.0"), "-o", "json")
    assert missing.code == 1
    assert states(missing) == {"vllm/vllm-openai:v0.11.0": "exists", "vllm/vllm-openai:v0.99.0": "missing"}
    assert json.loads(missing.out)["images"][1]["where"] == ["ServingRuntime r"]


def test_a_registry_that_wants_a_token_is_given_one(registry: Registry, tmp_path: Path) -> None:
    registry.secured = True
    path = manifest(tmp_path, "vllm/vllm-openai:v0.11.0", "vllm/vllm-openai:v1", "tiny")
    assert check(registry, path).code == 1
    tokens = [target for _, target, _ in registry.requests if target.startswith("/token")]
    assert len(tokens) == 2, "one for each repository"
    assert "service=stub" in tokens[0]
    assert "scope=repository%3Alibrary%2Ftiny%3Apull" in tokens[0]


def test_credentials_of_a_file_are_used_and_their_lack_is_told(registry: Registry, tmp_path: Path) -> None:
    path, auth = manifest(tmp_path, "tiny"), tmp_path / "config.json"
    login = base64.b64encode(b"me:secret").decode()
    auth.write_text(json.dumps({"auths": {f"https://{registry.address}/v1/": {"auth": login}}}), "utf-8")
    registry.login = "me:secret"
    for basic in (True, False):
        registry.basic, registry.secured = basic, not basic
        assert check(registry, path).code == 3
        assert "unknown" in check(registry, path).out
        assert check(registry, path, "--auth-file", auth).code == 0
    registry.requests.clear()
    auth.write_text(json.dumps({"auths": {"https://index.docker.io/v1/": {"auth": login}}}), "utf-8")
    assert check(registry, path, "--auth-file", auth).code == 3
    assert not any(authorization for *_, authorization in registry.requests), "a mirror is not sent the hub's password"


@pytest.mark.parametrize(
    ("status", "words"),
    [(429, "limits requests; try again later (in 30 s)"), (503, "answers 503"), (403, "denies access"), (401, "wants")],
)
def test_a_registry_that_does_not_answer_is_no_missing_image(
    registry: Registry, tmp_path: Path, status: int, words: str
) -> None:
    registry.status = status
    done = check(registry, manifest(tmp_path, "tiny"))
    assert done.code == 3
    assert words in done.out


def test_redirects_carry_no_token_to_another_host_and_end(registry: Registry, tmp_path: Path) -> None:
    registry.secured = True
    with serving(Registry("library/tiny:latest")) as other:
        path = manifest(tmp_path, "tiny")
        assert check(registry, path).code == 0
        registry.moved_to, registry.secured = f"http://{other.address}", False
        assert check(registry, path).code == 0
        other.secured = True
        registry.requests.clear()
        assert "wants credentials of its own" in check(registry, path).out
        assert not any(target.startswith("/token") for _, target, _ in other.requests)
        assert not any(authorization for *_, authorization in other.requests)
        other.secured, other.moved_to = False, f"http://{registry.address}"
        assert check(registry, path).code == 3, "two registries that send to each other"


def test_head_that_a_registry_does_not_know_is_asked_as_get(registry: Registry, tmp_path: Path) -> None:
    registry.refuses_head = True
    assert check(registry, manifest(tmp_path, "tiny")).code == 0
    assert [method for method, *_ in registry.requests] == ["HEAD", "GET"]


@pytest.mark.parametrize("realm", ["file:///etc/passwd", "gopher://x", "", "http://169.254.169.254/token"])
def test_tokens_are_fetched_from_http_addresses_only(registry: Registry, tmp_path: Path, realm: str) -> None:
    registry.secured, registry.realm = True, realm or "no-url"
    assert check(registry, manifest(tmp_path, "tiny")).code == 3


def test_only_a_named_registry_is_asked_in_plain_http(registry: Registry, tmp_path: Path) -> None:
    """Another one would be sent its password in the clear."""
    auth = tmp_path / "config.json"
    auth.write_text(json.dumps({"auths": {registry.address: {"username": "me", "password": "secret"}}}), "utf-8")
    path = manifest(tmp_path, f"{registry.address}/library/tiny")
    given = ("runtimes", "check-images", "-f", path, "--insecure", "--auth-file", auth)
    assert modelyard(*given, "--registry", "docker.io=127.0.0.1:1").code == 3
    assert registry.requests == []
    assert modelyard(*given, "--registry", f"{registry.address}={registry.address}").code == 0


@pytest.mark.parametrize("answer", [b"[" * 500_000, b'{"token": 1}', b'{"token": "a\\nb"}', b"{", b"[1]"])
def test_a_registry_whose_token_cannot_be_read_is_no_error_of_the_command(
    registry: Registry, tmp_path: Path, answer: bytes
) -> None:
    registry.secured, registry.token_answer = True, answer
    done = check(registry, manifest(tmp_path, "tiny"))
    assert (done.code, done.err) == (3, "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--insecure",), "--insecure: sends requests in plain HTTP"),
        (("--registry", "http://x"), "without a scheme"),
        (("--registry", "=x"), "without a scheme"),
        (("--auth-file", "/nonexistent"), "--auth-file /nonexistent"),
    ],
)
def test_unusable_options_end_with_2(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    done = modelyard("runtimes", "check-images", "-f", manifest(tmp_path, "tiny"), *arguments)
    assert done.code == 2
    assert words in done.err


def test_manifests_without_images_and_what_is_no_image(registry: Registry, tmp_path: Path) -> None:
    empty = tmp_path / "empty.yaml"
    empty.write_text("{apiVersion: v1, kind: ConfigMap, metadata: {name: x}}\n", "utf-8")
    assert modelyard("runtimes", "check-images", "-f", empty).code == 2
    done = check(registry, manifest(tmp_path, "$(IMAGE)"))
    assert done.code == 1
    assert "write [REGISTRY/]REPOSITORY" in done.out
    assert registry.requests == []


def test_an_address_where_nothing_listens(tmp_path: Path) -> None:
    path = manifest(tmp_path, "tiny")
    done = modelyard("runtimes", "check-images", "-f", path, "--registry", "docker.io=127.0.0.1:1", "--insecure")
    assert done.code == 3
    assert "127.0.0.1:1 cannot be reached" in done.out
