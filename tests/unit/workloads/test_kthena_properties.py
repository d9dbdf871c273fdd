"""Whatever a tenant writes: nothing raises, equal input gives equal bytes, names are legal and no two are one."""

from __future__ import annotations

import copy
import re
from typing import Any

from hypothesis import given, settings, strategies as st
from kthena_models import LWS, PLAIN, UID, render_model

from modelyard.workloads.rendering.values import Abilities, Refused, Rendered, canonical

HOSTILE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=20)
    | st.sampled_from(["../..", "$(X)", "a" * 300, "\ud800", "\0", "{", "-1", "9" * 30, "hf://a/b", "pvc://", "0.1Gi"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True)
URIS = st.sampled_from([*(["hf://a/b", "hf://a/b@v1", "s3://bucket/p"] * 2), "pvc://claim/x", "pvc://c", "hf://a/b/c"])
CACHES = st.sampled_from(
    ["pvc://claim", "pvc://a/b", "hostpath:///mnt/models", "hostpath://mnt/models/shop/x", "hostpath://.."]
)
KEYS = ["served-model-name", "max_model_len", "tensor_parallel_size", "chat-template", "flag"]
PLAIN_VALUES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
CONFIG = st.dictionaries(
    st.sampled_from(KEYS), PLAIN_VALUES | st.lists(PLAIN_VALUES, max_size=2) | st.text(max_size=9), max_size=4
) | st.dictionaries(st.sampled_from(["port", "kv-transfer-config", "a b"]) | st.text(max_size=8), HOSTILE, max_size=2)
METRICS = st.sampled_from(["vllm:num_requests_waiting", "kthena:num_requests_waiting"])
POLICY = st.fixed_dictionaries(
    {
        "metrics": st.lists(
            st.fixed_dictionaries({"metricName": METRICS, "targetValue": st.integers(1, 9)}), min_size=1, max_size=1
        )
    }
)
LORA = st.lists(
    st.fixed_dictionaries({"name": NAMES, "artifactURL": URIS}), max_size=3, unique_by=lambda one: one["name"]
)


AMOUNTS = st.just({"limits": {"nvidia.com/gpu": 1, "cpu": "1.5"}}) | st.dictionaries(
    st.sampled_from(["limits", "requests"]), HOSTILE, max_size=1
)


def worker(type: str) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {"type": st.just(type), "image": st.sampled_from(["engine:1", "modelyard.dev/simulated-engine:1"])},
        optional={
            "replicas": st.integers(1, 3),
            "pods": st.sampled_from([0, 1, 1, 1, 2, 3, 1_000_000]),
            "resources": AMOUNTS,
            "affinity": st.dictionaries(st.sampled_from(["nodeAffinity", "x"]), HOSTILE, max_size=2),
            "config": CONFIG,
        },
    )


@st.composite
def backends(draw: st.DrawFn) -> dict[str, Any]:
    type = draw(st.sampled_from(["vLLM", "vLLMDisaggregated", "SGLang", "MindIE", "MindIEDisaggregated"]))
    roles = ["prefill", "decode"] if type.endswith("Disaggregated") else ["server"]
    if type == "MindIEDisaggregated":
        roles.append("coordinator")
    scaled = draw(st.booleans())
    least = draw(st.sampled_from([1, 1, 2, 3, 200]))
    found = draw(
        st.fixed_dictionaries(
            {"name": NAMES, "modelURI": URIS},
            optional={
                "cacheURI": CACHES,
                "env": st.lists(
                    st.fixed_dictionaries(
                        {
                            "name": st.sampled_from(
                                ["A", "HF_TOKEN", "VLLM_ALLOW_RUNTIME_LORA_UPDATING", "RUNTIME_METRICS_PATH"]
                            )
                        },
                        optional={"value": st.sampled_from(["", "true", "x"]), "valueFrom": HOSTILE},
                    ),
                    max_size=3,
                ),
                "envFrom": st.lists(st.dictionaries(st.just("secretRef"), HOSTILE, max_size=1), max_size=2),
                "loraAdapters": LORA,
                "routeWeight": st.integers(0, 5),
            },
        )
    )
    more = {"autoscalingPolicy": draw(POLICY)} if scaled else {}
    bounds = {"minReplicas": least, "maxReplicas": least + (1 if scaled else 0)}
    if type.startswith("MindIE"):
        found.pop("loraAdapters", None)
    return {**found, "type": type, "workers": [draw(worker(one)) for one in roles], **bounds, **more}


@st.composite
def models(draw: st.DrawFn) -> dict[str, Any]:
    """Models that could be stored; some of them with something in them that could not."""
    spec: dict[str, Any] = {
        "backends": draw(st.lists(backends(), min_size=1, max_size=2, unique_by=lambda b: b["name"]))
    }
    if draw(st.booleans()):
        spec["name"] = draw(st.from_regex(r"[a-z0-9]([-a-z0-9]{0,9}[a-z0-9])?", fullmatch=True))
    if draw(st.booleans()):
        spec["modelMatch"] = {"uri": {"prefix": "/"}}
    name = draw(st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,70}[a-z0-9])?", fullmatch=True))
    model = {"apiVersion": "registry.volcano.sh/v1alpha1", "kind": "Model", "spec": spec}
    model["metadata"] = {"name": name, "namespace": "shop", "uid": UID}
    if draw(st.integers(0, 3)) == 0:
        place: Any = draw(st.sampled_from([model, spec, spec["backends"][0], spec["backends"][0]["workers"][0]]))
        place[draw(st.sampled_from(sorted(place)))] = draw(HOSTILE)
    return model


@given(models(), st.sampled_from([PLAIN, LWS]))
@settings(max_examples=60)
def test_equal_models_are_rendered_alike_and_none_raises(model: dict[str, Any], abilities: Abilities) -> None:
    first = render_model(model, abilities)
    second = render_model(_backwards(copy.deepcopy(model)), abilities)
    if isinstance(first, Refused):
        assert isinstance(second, Refused)
        assert first.field
        assert first.problem
        assert first.remedy
        return
    assert isinstance(second, Rendered)
    texts = [canonical(child.body) for child in first.children]
    assert texts == [canonical(child.body) for child in second.children]
    assert "null" not in texts
    for text in texts:
        text.encode()
    called = [(child.kind, child.name) for child in first.children]
    assert len(set(called)) == len(called)
    assert len(called) < 400
    assert all(re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name) for _, name in called)


@given(HOSTILE)
@settings(max_examples=40)
def test_what_is_no_model_at_all_is_refused(body: Any) -> None:
    for obj in (body, {"metadata": body}, {"metadata": {"name": "x"}, "spec": body}):
        assert isinstance(render_model(obj, PLAIN), Refused)


def _backwards(value: Any) -> Any:
    """The same with the fields of every object in the other order; those of ``config`` are free, and equal too."""
    if isinstance(value, dict):
        return {key: _backwards(one) for key, one in reversed(value.items())}
    return [_backwards(one) for one in value] if isinstance(value, list) else value
