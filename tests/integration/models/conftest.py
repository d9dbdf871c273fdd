"""A model hub, a real server, and a folder that stands for a node's models root."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import model_hub
import pytest
from node_jobs import Node


@pytest.fixture
def hub() -> Iterator[model_hub.Hub]:
    with model_hub.serve() as served:
        yield served


@pytest.fixture
def node(hub: model_hub.Hub, tmp_path: Path) -> Node:
    return Node(tmp_path, hub.address)
