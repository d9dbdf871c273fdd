"""Settings of the local cluster: what is accepted, what is refused, and with which words."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from modelyard.local.settings import Component, NodeGroup, StackSettings, default_nodes, parse_node_group


def test_default_nodes_are_of_three_accelerator_types() -> None:
    groups = default_nodes()
    assert {group.product: group.count * group.gpus for group in groups} == {
        "NVIDIA-H100-SXM5-80GB": 16,
        "NVIDIA-L40S-48GB": 16,
        "NVIDIA-A100-SXM4-80GB": 8,
    }


@pytest.mark.parametrize(
    ("text", "group"),
    [
        ("cpu=3x0", NodeGroup(name="cpu", count=3, gpus=0)),
        ("l4=1x4xNVIDIA-L4", NodeGroup(name="l4", count=1, gpus=4, product="NVIDIA-L4")),
        (
            "h100=2x8xNVIDIA-H100-SXM5-80GBx81559",
            NodeGroup(name="h100", count=2, gpus=8, product="NVIDIA-H100-SXM5-80GB", gpu_memory_mib=81559),
        ),
    ],
)
def test_node_groups_are_read_from_text(text: str, group: NodeGroup) -> None:
    assert parse_node_group(text) == group


@pytest.mark.parametrize("text", ["", "h100", "h100=8", "=1x8", "h100=x8", "h100=1x8x", "a b=1x8"])
def test_other_node_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"COUNTxGPUS|name"):
        parse_node_group(text)


def test_components_are_put_in_starting_order() -> None:
    settings = StackSettings(components=[Component.SCHEDULER, Component.APISERVER, Component.ETCD])
    assert settings.components == [Component.ETCD, Component.APISERVER, Component.SCHEDULER]
    assert settings.programs() == ["etcd", "kube-apiserver", "kube-scheduler"]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"components": ["apiserver"]}, "apiserver needs etcd"),
        ({"components": ["etcd", "agent"]}, "agent needs apiserver"),
        ({"nodes": [{"name": "a"}, {"name": "a"}]}, "two groups have one name"),
        ({"scrape_targets": ["http://x:1/"]}, "is not host:port"),
        ({"scrape_interval": "often"}, "scrape_interval"),
        ({"base_port": 80}, "base_port"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_wrong_settings_say_what_is_wrong(fields: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        StackSettings.model_validate(fields)
