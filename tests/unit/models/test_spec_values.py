"""Values of a model's spec as people write them: sizes and storage parameters, corrected, refused or warned about."""

from __future__ import annotations

import difflib
import re
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from model_world import Cluster, Object, condition, edit, model

from modelyard.cli.models import columns_of
from modelyard.models.delivery import jobs
from modelyard.models.delivery.model_size import SMALLEST, read_size, size_of
from modelyard.models.delivery.world import LIFECYCLE
from modelyard.models.detection import Facts, size_text
from modelyard.models.storage.errors import FetchError
from modelyard.models.storage.storage_parameters import PARAMETERS, source_uri, storage_warnings, warnings
from modelyard.models.storage.uri import parse
from modelyard.resources.ome.models import StorageSpec

B, M, T = 10**9, 10**6, 10**12


@pytest.mark.parametrize(
    ("text", "parameters", "canonical"),
    [
        ("7B", 7 * B, "7B"),
        ("8.0B", 8 * B, "8.0B"),
        ("1.1T", 1.1 * T, "1.1T"),
        ("8030261248", 8030261248, "8030261248"),
        ("8b", 8 * B, "8B"),
        ("8 B", 8 * B, "8B"),
        ("70b", 70 * B, "70B"),
        ("1.2t", 1.2 * T, "1.2T"),
        ("500m", 500 * M, "500M"),
        (" 8B\n", 8 * B, "8B"),
        ("8\u00a0B", 8 * B, "8B"),
        ("８Ｂ", 8 * B, "8B"),
        ("8bn", 8 * B, "8B"),
        ("8 billion", 8 * B, "8B"),
        ("1.2 Trillion parameters", 1.2 * T, "1.2T"),
        ("8.035b", 8.035 * B, "8.035B"),
        ("1200b", 1200 * B, "1.2T"),
        (".5B", 0.5 * B, "500M"),
        ("8e9", 8 * B, "8B"),
        ("8,030,261,248", 8030261248, "8.030261248B"),
        ("8_000_000_000", 8 * B, "8B"),
        ("500K", 500_000, "500000"),
    ],
)
def test_a_size_that_can_mean_one_thing_only_is_corrected(text: str, parameters: float, canonical: str) -> None:
    size = read_size(text, least=SMALLEST)
    assert (size.parameters, size.text) == (Decimal(str(parameters)), canonical)
    assert bool(size.remark) == (text != canonical)
    assert read_size(canonical) == (size.parameters, canonical, "")


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("8", "write the unit, such as 8B"),
        ("0", "leave it out"),
        ("0B", "leave it out"),
        ("nonsense", "such as 7B or 1.1T"),
        ("16GB", "reads like bytes"),
        ("15Gi", "reads like bytes"),
        ("8G", "reads like bytes"),
        ("8x7B", "all parameters of the experts together"),
        ("8,03B", "write 8.03B if the comma is a decimal point"),
        ("-8B", "such as 7B"),
        ("7B-13B", "such as 7B"),
        ("NaN", "such as 7B"),
        ("1e99", "such as 7B"),
        ("٧B", "such as 7B"),
        ("8b" * 5000, "such as 7B"),
    ],
)
def test_other_sizes_are_refused_with_a_remedy(text: str, remedy: str) -> None:
    with pytest.raises(ValueError, match=re.escape(remedy)) as refused:
        read_size(text, least=SMALLEST)
    assert len(str(refused.value)) < 200


@given(st.integers(10**6, 10**15))
def test_what_this_project_writes_as_a_size_it_reads_in_lower_case_too(count: int) -> None:
    text = size_text(count)
    assert read_size(text.lower()).parameters == read_size(text).parameters


@given(st.text(max_size=60))
def test_any_text_is_a_size_or_refused(text: str) -> None:
    size = size_of(text, Facts())
    assert (size.parameters is None) == (bool(size.problem) or not text)


def test_a_size_that_cannot_be_read_gives_way_to_what_was_counted_in_the_files() -> None:
    size = size_of("8x7B", Facts(parameters=46_702_792_704))
    assert (size.parameters, size.text, size.problem) == (Decimal(46_702_792_704), "46.7B", "")
    assert size.remark.endswith("used instead: 46.7B, counted in the files")
    assert size_of("700", Facts(parameters=700)) == (Decimal(700), "700", "", ""), "as it was filled in"


def warning(obj: Object) -> tuple[str, str]:
    found = [c for c in obj["status"]["conditions"] if c["type"] == "SpecWarning"]
    return (found[0]["reason"], found[0]["message"]) if found else ("", "")


def events(cluster: Cluster) -> list[str]:
    reasons = {"ParameterIgnored", "ModelSizeInvalid", "ModelSizeCorrected"}
    return [notice.message for plan in cluster.plans for notice in plan.notices if notice.reason in reasons]


@pytest.mark.parametrize("value", ["Deprecated", "Experiment", "Public", "Internal"])
def test_the_lifecycle_of_a_model_is_repeated_in_its_status_until_it_is_taken_back(value: str) -> None:
    cluster = Cluster("a")
    obj = cluster.put("ClusterBaseModel", model())
    obj["metadata"]["annotations"] = {LIFECYCLE: value}
    cluster.settle(obj)
    assert obj["status"]["lifecycle"] == value
    assert warning(obj) == ("", "")
    obj["metadata"]["annotations"].pop(LIFECYCLE)
    cluster.settle(obj)
    assert "lifecycle" not in obj["status"]


@pytest.mark.parametrize("value", ["deprecated", "Retired", "x" * 300])
def test_an_unknown_lifecycle_is_warned_about_and_not_repeated(value: str) -> None:
    cluster = Cluster("a")
    obj = cluster.put("ClusterBaseModel", model())
    obj["metadata"]["annotations"] = {LIFECYCLE: value}
    cluster.settle(obj)
    assert "lifecycle" not in obj["status"]
    reason, message = warning(obj)
    assert reason == "LifecycleUnknown"
    assert message.endswith("write Deprecated, Experiment, Public, Internal")


def test_unknown_parameters_are_warned_about_once_on_the_object() -> None:
    cluster = Cluster("a")
    obj = cluster.put("ClusterBaseModel", model(parameters={"revison": "v1"}))
    cluster.settle(obj)
    reason, message = warning(obj)
    assert reason == "ParameterIgnored"
    assert message == "spec.storage.parameters: unknown key 'revison' has no effect; did you mean 'revision'?"
    cluster.end(cluster.jobs("fetch")["a"], bytes=1)
    cluster.settle(obj)
    assert (condition(obj, "Ready")[0], events(cluster)) == ("True", [message])
    edit(obj, parameters={"revision": "v1"})
    cluster.settle(obj)
    assert warning(obj) == ("", "")
    (job,) = cluster.jobs("fetch").values()
    arguments = job["spec"]["template"]["spec"]["containers"][0]["args"]
    assert arguments[arguments.index("--uri") + 1] == "hf://meta/llama@v1"


def test_the_list_of_models_shows_warnings_and_the_chosen_weights() -> None:
    cluster = Cluster("a")
    obj = cluster.put("ClusterBaseModel", model(parameters={"regoin": "x"}))
    cluster.settle(obj)
    *_, remarks = columns_of(obj["status"])
    assert re.search(r"^Downloading: .*; spec\.storage\.parameters: unknown key 'regoin'", str(remarks))
    cluster.end(cluster.jobs("fetch")["a"], bytes=2**30, weights="weights: gguf Q4_K_M, m.gguf (1 file, 1.0 GiB)")
    cluster.settle(obj)
    state, nodes, size, _, remarks = columns_of(obj["status"])
    assert (str(state), nodes, size) == ("Ready", "1/1", "1.0 GiB")
    assert str(remarks).startswith(
        "spec.storage.parameters: unknown key 'regoin' has no effect; did you mean 'region'?"
    )
    assert str(remarks).endswith("; weights: gguf Q4_K_M, m.gguf (1 file, 1.0 GiB)")


@pytest.mark.parametrize(
    ("size", "reason", "part"),
    [("8b", "ModelSizeCorrected", "'8b' is read as 8B; write 8B"), ("8x7B", "ModelSizeInvalid", "46.7B")],
)
def test_a_size_is_corrected_or_refused_in_the_status(size: str, reason: str, part: str) -> None:
    cluster = Cluster("a")
    obj = model()
    obj["spec"]["modelParameterSize"] = size
    cluster.put("ClusterBaseModel", obj)
    cluster.settle(obj)
    assert warning(obj)[0] == reason
    assert part in warning(obj)[1]
    assert len(events(cluster)) == 1
    obj["spec"]["modelParameterSize"] = "8B"
    obj["metadata"]["generation"] += 1
    cluster.settle(obj)
    assert warning(obj) == ("", "")


@pytest.mark.parametrize(
    ("uri", "name", "text"),
    [
        ("hf://a/b", "Revision", "did you mean 'revision'?"),
        ("hf://a/b", "all_formats", "did you mean 'allFormats'?"),
        ("hf://a/b", "secret_key", "did you mean 'secretKey'?"),
        ("s3://bucket/p", "endpiont", "did you mean 'endpoint'?"),
        ("hf://a/b", "cache_dir", "spec.storage.path"),
        ("oci://n/ns/b/bkt/o/x", "auth_type", "did you mean 'auth'?"),
        ("s3://bucket/p", "xyz", "known are "),
        ("hf://a/b", "region", "region has no effect for hf://, only for obs://, oci://, s3://; remove it"),
        ("s3://bucket/p", "revision", "revision has no effect for s3://, only for github://, hf://; remove it"),
    ],
)
def test_every_parameter_without_effect_has_a_remedy(uri: str, name: str, text: str) -> None:
    (warning,) = warnings(parse(uri), {name: "x"})
    assert text in warning


def test_every_parameter_that_is_read_is_known() -> None:
    source = Path(jobs.__file__).read_text("utf-8")
    read = set(re.findall(r"parameters(?:\.get\(|\[)\"(\w+)\"", source)) | set(
        re.findall(r'"(\w+)" in parameters', source)
    )
    assert {"endpoint", "region", "weights", "secretKey"} <= read <= PARAMETERS.keys()
    assert warnings(parse("hf://a/b"), dict.fromkeys(("endpoint", "include", "exclude", "weights", "token"), "x")) == []
    assert warnings(None, {"region": "x"}) == []


def test_of_many_parameters_few_are_put_into_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """A suggestion takes longer than all else, and anybody may write thousands of parameters."""
    asked: list[str] = []
    suggest = difflib.get_close_matches
    monkeypatch.setattr(
        difflib, "get_close_matches", lambda word, *more, **n: asked.append(word) or suggest(word, *more, **n)
    )
    texts = warnings(parse("hf://a/b"), {**{f"endpoint{number:05}": "x" for number in range(20_000)}, "region": "x"})
    assert len(texts) == 11
    assert texts[-1] == "and 19991 more"
    assert len(asked) == 10


def test_the_parameter_revision_names_the_revision() -> None:
    assert str(source_uri("hf://a/b", {"revision": "v2"})) == "hf://a/b@v2"
    assert str(source_uri("github://a/b", {"revision": "v2"})) == "github://a/b@v2"
    assert str(source_uri("hf://a/b@v2", {"revision": "v2"})) == "hf://a/b@v2"
    assert source_uri("s3://bucket/p", {"revision": "v2"}) == parse("s3://bucket/p")
    with pytest.raises(FetchError, match=r"revision is 'v2', but storageUri names 'v1'; write one of them"):
        source_uri("hf://a/b@v1", {"revision": "v2"})
    with pytest.raises(FetchError, match="has white space"):
        source_uri("hf://a/b", {"revision": "a b"})


REQUIRED = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}
PREFERRED = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}]}


@pytest.mark.parametrize(
    ("uri", "fields", "expected"),
    [
        (
            "pvc://claim/x",
            {"path": "/mnt/models/x"},
            "spec.storage.path has no effect for pvc://: the files stay in the",
        ),
        (
            "pvc://claim/x",
            {"nodeSelector": {"a": "b"}},
            "spec.storage.nodeSelector has no effect for pvc://: the claim",
        ),
        ("pvc://claim/x", {"nodeAffinity": REQUIRED}, "spec.storage.nodeAffinity has no effect for pvc://: the claim"),
        ("pvc://claim/x", {"key": "k"}, "spec.storage.key has no effect for pvc://: nothing is fetched; remove it"),
        ("local:///x", {"key": "k"}, "spec.storage.key has no effect for local://: nothing is fetched; remove it"),
        ("vendor://a/b/c", {"downloadPolicy": "ReuseIfExists"}, "spec.storage.downloadPolicy has no effect for vendor"),
        ("hf://a/b", {"nodeAffinity": PREFERRED}, "has no effect: a model goes to every node that matches"),
        ("hf://a/b", {"parameters": {"secretKey": "x"}}, "secretKey has no effect without spec.storage.key"),
        ("hf://a/b", {"parameters": {"token": "x"}, "key": "k"}, "token has no effect next to spec.storage.key"),
        ("hf://a/b", {"parameters": {"token": "x", "secretKey": "y"}}, "secretKey has no effect without"),
        ("s3://bucket/x", {"path": "/x", "key": "k", "downloadPolicy": "ReuseIfExists", "nodeAffinity": REQUIRED}, ""),
        ("local:///x", {"path": "/x", "nodeSelector": {"a": "b"}}, ""),
        ("hf://a/b", {"parameters": {"secretKey": "x"}, "key": "k"}, ""),
        ("pvc://claim/x", {"path": "", "nodeSelector": {}}, ""),
    ],
)
def test_fields_without_effect_for_a_kind_of_source_are_reported(uri: str, fields: Object, expected: str) -> None:
    texts = storage_warnings(parse(uri), StorageSpec.model_validate({"storageUri": uri, **fields}))
    assert len(texts) == bool(expected)
    assert expected in "".join(texts)


@pytest.mark.parametrize("kind", ["ClusterBaseModel", "BaseModel", "FineTunedWeight"])
def test_every_kind_of_model_reports_them_on_the_object(kind: str) -> None:
    cluster = Cluster("a")
    obj = model(namespace="shop") if kind == "BaseModel" else model()
    obj["kind"] = kind
    if kind == "FineTunedWeight":
        obj["spec"] |= {"baseModelRef": {"name": "base"}, "modelType": "LoRA", "hyperParameters": {}}
    obj["spec"]["storage"] = {"storageUri": "pvc://shop:claim/x", "key": "k"}
    cluster.put(kind, obj)
    cluster.settle(obj)
    assert warning(obj) == (
        "ParameterIgnored",
        "spec.storage.key has no effect for pvc://: nothing is fetched; remove it",
    )
