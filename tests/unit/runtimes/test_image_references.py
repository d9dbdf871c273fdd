"""References to images, where manifests name them, and the evidence for those of the catalogue."""

from __future__ import annotations

import datetime
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, strategies as st

from modelyard.runtimes.images import LONGEST, images_of, parse_image
from modelyard.workloads.rendering.engines import OF as ENGINES

CONFIG = Path(__file__).resolve().parents[3] / "config"
FOLDER = CONFIG / "runtimes"
EVIDENCE: list[dict[str, Any]] = tomllib.loads((FOLDER / "images.toml").read_text("utf-8"))["image"]
NAMED = {
    image: path.name
    for path in sorted(FOLDER.rglob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text("utf-8"))
    for image in images_of(document)
}
DIGEST = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("nginx", "docker.io/library/nginx:latest"),
        ("vllm/vllm-openai:v0.11.0", "docker.io/vllm/vllm-openai:v0.11.0"),
        ("index.docker.io/vllm/vllm-openai:v0.11.0", "docker.io/vllm/vllm-openai:v0.11.0"),
        ("registry.example.com/a/b/c:1", "registry.example.com/a/b/c:1"),
        ("localhost/a", "localhost/a:latest"),
        ("mirror:5000/a", "mirror:5000/a:latest"),
        ("[::1]:5000/a:x", "[::1]:5000/a:x"),
        (f"a/b@{DIGEST}", f"docker.io/a/b@{DIGEST}"),
        (f"r.io/a/b:v1@{DIGEST}", f"r.io/a/b:v1@{DIGEST}"),
    ],
)
def test_image_references_are_read_as_the_distribution_project_does(text: str, whole: str) -> None:
    reference = parse_image(text)
    assert str(reference) == whole
    assert reference.version == (reference.digest or reference.tag)
    assert parse_image(whole) == reference


@pytest.mark.parametrize(
    "text", ["", "A/b", "a/b:", "a/b:-x", "a//b", "a b", "a/b@sha256:1", "$(IMAGE)", "a/b:v1:v2", "x" * (LONGEST + 1)]
)
def test_what_is_no_image_reference_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"write \[REGISTRY/\]REPOSITORY") as refused:
        parse_image(text)
    assert len(str(refused.value)) < 500


@given(st.text(max_size=100))
def test_any_text_is_a_reference_or_refused(text: str) -> None:
    try:
        reference = parse_image(text)
    except ValueError:
        return
    assert reference.repository
    assert ".." not in f"/{reference.repository}/"


def test_images_are_found_wherever_a_manifest_has_them() -> None:
    runner = {"image": "a", "containers": [{"image": "b"}], "sidecars": {"x": [{"image": "c", "other": 1}]}}
    assert list(images_of({"spec": runner, "image": {"image": "d"}})) == ["a", "b", "c", "d"]
    deep: Any = "x"
    for _ in range(2000):
        deep = {"spec": deep}
    assert list(images_of(deep)) == []


def test_every_image_of_the_catalogue_has_an_entry_and_its_tag() -> None:
    entries = {f"{entry['repository']}:{entry['tag']}" for entry in EVIDENCE}
    assert NAMED.keys() == entries, "config/runtimes/images.toml and the runtimes name other images"
    assert len(entries) == len(EVIDENCE)


def test_samples_and_kthena_backends_use_the_evidenced_images() -> None:
    repositories = {entry["repository"]: entry["tag"] for entry in EVIDENCE}
    samples = [
        image
        for path in sorted((CONFIG / "samples").rglob("*.yaml"))
        for document in yaml.safe_load_all(path.read_text("utf-8"))
        for image in images_of(document)
    ]
    defaults = [engine.image for engine in ENGINES.values() if engine.image]
    assert samples
    assert defaults
    for image in (*samples, *defaults):
        reference = parse_image(image)
        repository = f"{reference.repository}".removeprefix("docker.io/")
        if repository in repositories:
            assert reference.version == repositories[repository], image


@pytest.mark.parametrize("entry", EVIDENCE, ids=lambda entry: entry["repository"])
def test_every_tag_is_evidenced_by_dated_documents_or_says_that_it_is_not(entry: dict[str, Any]) -> None:
    evidence = entry.get("evidence", [])
    assert entry["why"]
    assert entry["verified"] == bool(evidence)
    for document in evidence:
        assert document["title"]
        assert document.get("url", "").startswith("https://") or re.fullmatch(r"[-\w]+==[\d.]+", document["package"])
        assert isinstance(document["date"], datetime.date)
    version = entry["tag"].removeprefix("v")
    assert not evidence or any(version in document["title"] for document in evidence)
    own = entry["repository"].startswith("modelyard.dev/")
    assert own or evidence, "an image of others in the catalogue has evidence"
    assert own or entry["tag"] != "latest"
