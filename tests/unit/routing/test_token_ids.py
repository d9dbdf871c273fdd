"""Long lists of token ids: counted, not read."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import orjson
import pytest
from hypothesis import given, strategies as st

from modelyard.routing.body import ModelRequest, estimate, prompt_of, read
from modelyard.routing.decide import Arrival, Decider, Question
from modelyard.routing.token_ids import MOST_KEPT, cut_token_ids

IDS = list(range(100_000, 200_000))


def summed(body: bytes) -> int:
    request = read(body)
    assert isinstance(request, ModelRequest), request
    return estimate(prompt_of(request.data)) + request.ids_cut


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize(
    ("data", "tokens"),
    [
        ({"prompt": IDS}, 100_000),
        ({"input": IDS, "model": "m"}, 100_000),
        ({"prompt": [IDS, IDS], "stream": True}, 200_000),
        ({"prompt": [[], IDS, [1, 2]]}, 100_002),
        ({"prompt": [float(token) for token in IDS]}, 100_000),
        ({"prompt": [-1, *IDS]}, 100_001),
        ({"prompt": IDS, "input": IDS}, 200_000),
        ({"prompt": "x" * 400, "suffix": IDS}, 100),
        ({"messages": [{"role": "user", "content": json.dumps({"prompt": IDS[:10_000]})}]}, 20_010),
        ({"prompt": ["x" * 400, *IDS[:9000]]}, 9100),
    ],
)
def test_token_ids_are_counted_wherever_they_are(data: dict[str, Any], tokens: int, indent: int | None) -> None:
    assert abs(summed(json.dumps({"model": "m", **data}, indent=indent).encode()) - tokens) <= 1


def test_a_prompt_of_999_000_token_ids_is_not_read() -> None:
    ids = [number % 9 for number in range(999_000)]
    body = orjson.dumps({"model": "llama", "prompt": ids, "max_tokens": 1})
    parsed, ids_cut = cut_token_ids(body)
    assert len(parsed) <= MOST_KEPT + 100
    data = orjson.loads(parsed)
    assert data["prompt"] == ids[: len(data["prompt"])]
    assert len(data["prompt"]) + ids_cut == 999_000
    tracemalloc.start()
    try:
        question = Decider().question(Arrival("POST", "/v1/completions", {}, body))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(question, Question)
    assert question.tokens == 999_000
    assert question.request.raw is body
    assert peak < 2.2 * len(body), "two copies of the bytes and no numbers, which take four times as much"


def test_of_ids_that_are_cut_the_first_are_compared_as_a_prefix() -> None:
    def head(ids: list[int]) -> str:
        arrival = Arrival("POST", "/v1/completions", {}, orjson.dumps({"model": "m", "prompt": ids}))
        question = Decider().question(arrival)
        assert isinstance(question, Question)
        return question.text

    whole = " ".join(map(str, IDS))
    assert whole.startswith(head(IDS))
    assert head(IDS) == head(IDS[:1500])[: len(head(IDS))]
    assert len(head(IDS)) == Decider().configuration.most_hashed


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","prompt":' + b"[1," * 30_000,
        b'{"model":"m","prompt":[' + b"1" * 50_000,
        b'{"model":"m","prompt":[' + b"," * 50_000 + b"]}",
        b'{"model":"m","prompt":[' + b"1," * 50_000,
        b'{"model":"m","prompt":' + b"[" * 120_000 + b"]" * 120_000 + b"}",
        b'"prompt":[' + b"1," * 50_000 + b"1]",
    ],
)
def test_what_is_no_list_of_numbers_is_refused_as_ever(body: bytes) -> None:
    assert not isinstance(read(body), ModelRequest)


@given(
    st.recursive(
        st.integers(-5, 10**6) | st.text(alphabet='"prompt:[1,]{}\\ ', max_size=40) | st.just(IDS[:4000]),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(st.sampled_from(["prompt", "input", '"prompt', "x\\"]), inner, max_size=3)
        ),
        max_leaves=12,
    ),
    st.sampled_from([None, 1]),
)
def test_only_lists_of_numbers_are_cut(value: Any, indent: int | None) -> None:
    """Cutting changes no text, no name and no other value."""

    def shown(part: Any) -> Any:
        if isinstance(part, dict):
            return {name: shown(inner) for name, inner in part.items()}
        if isinstance(part, list):
            if part and all(isinstance(item, int | list) for item in part):
                return "numbers" if "[" not in str(part)[1:] or not _texts(part) else [shown(item) for item in part]
            return [shown(item) for item in part]
        return part

    body = json.dumps({"prompt": value, "model": "m"}, indent=indent, ensure_ascii=False).encode()
    parsed, ids = cut_token_ids(body)
    assert shown(orjson.loads(parsed)) == shown(orjson.loads(body))
    assert ids >= 0
    assert (parsed is body) == (ids == 0)


def _texts(part: Any) -> bool:
    if isinstance(part, list):
        return any(map(_texts, part))
    return not isinstance(part, int)
