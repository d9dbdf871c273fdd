"""The files of a GitHub release on a node."""

from __future__ import annotations

import pytest
from model_hub import Fault, Hub
from node_jobs import Node

FILES = {"model.gguf": bytes(range(256)) * 1000, "config.json": b"{}", "none": b""}


def test_the_files_of_the_latest_release_or_of_a_tag(hub: Hub, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.release("v1", FILES)
    monkeypatch.setenv("GITHUB_TOKEN", "secret")
    first = node.fetch("github://o/r")
    assert (first.outcome, node.files()) == ("Fetched", FILES)
    assert {value for path, value in hub.secrets if "/cdn/" in path} == {None}
    assert {value for path, value in hub.secrets if "/cdn/" not in path} == {"Bearer secret"}
    assert node.fetch("github://o/r").fromStore
    hub.release("v2", {**FILES, "config.json": b"[]"}, digests=False)
    assert str(node.fetch("github://o/r").revision).startswith("v2-")
    assert node.files()["config.json"] == b"[]"
    assert node.fetch("github://o/r@v1", "clusterbasemodel.n", "n").revision == first.revision


def test_releases_that_cannot_be_fetched(hub: Hub, node: Node) -> None:
    assert node.fetch("github://o/none").reason == "NotFound"
    hub.release("v1", {})
    assert node.fetch("github://o/r").reason == "NothingToFetch"
    hub.releases["/repos/o/r/releases/latest"] = {"assets": "nonsense"}
    assert node.fetch("github://o/r").reason == "SourceUnavailable"
    hub.release("v1", {"../x": b"evil"})
    assert node.fetch("github://o/r").reason == "HostileName"
    hub.release("v1", FILES)
    hub.faults.append(Fault("/cdn/", 1000, flip=True))
    assert node.fetch("github://o/r").reason == "Corrupt"
