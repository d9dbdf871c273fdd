"""How the server's answers become exceptions, and what those say."""

from __future__ import annotations

import pickle
from typing import Any

import orjson
import pytest

from modelyard.cluster import (
    AlreadyExists,
    ClusterError,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    TooOld,
    Unauthorized,
    Unavailable,
    UnknownKind,
)
from modelyard.cluster.errors import from_answer


def answer(status: int, reason: str = "", message: str = "", **details: Any) -> ClusterError:
    body = {"kind": "Status", "code": status, "reason": reason, "message": message, "details": details}
    return from_answer("get", "Pod ns/p", status, orjson.dumps(body))


@pytest.mark.parametrize(
    ("status", "reason", "details", "expected"),
    [
        (400, "BadRequest", {}, Invalid),
        (401, "Unauthorized", {}, Unauthorized),
        (403, "Forbidden", {}, Forbidden),
        (404, "NotFound", {"name": "p", "kind": "pods"}, NotFound),
        (404, "NotFound", {}, UnknownKind),
        (409, "Conflict", {}, Conflict),
        (409, "AlreadyExists", {}, AlreadyExists),
        (410, "Expired", {}, TooOld),
        (410, "Gone", {}, TooOld),
        (413, "RequestEntityTooLarge", {}, ClusterError),
        (422, "Invalid", {}, Invalid),
        (429, "TooManyRequests", {}, Unavailable),
        (500, "InternalError", {}, Unavailable),
        (503, "ServiceUnavailable", {}, Unavailable),
        (504, "Timeout", {}, Unavailable),
    ],
)
def test_each_answer_has_its_class(
    status: int, reason: str, details: dict[str, Any], expected: type[ClusterError]
) -> None:
    error = answer(status, reason, "the message", **details)
    assert type(error) is expected
    assert (error.status, error.reason, error.verb, error.object) == (status, reason, "get", "Pod ns/p")
    assert str(error).startswith(f"get Pod ns/p: {status} {reason}: the message")


def test_missing_definition_names_the_command_that_installs_it() -> None:
    error = from_answer("list", "variantautoscalings in chat", 404, b"404 page not found")
    assert str(error).startswith("list variantautoscalings in chat: 404: 404 page not found (is the CRD")
    assert "`modelyard crds --install`" in str(error)


def test_invalid_lists_its_causes() -> None:
    causes = [{"field": "spec.a", "message": "must be positive"}, {"field": ".spec.b", "message": "is required"}]
    error = answer(422, "Invalid", "Widget is invalid", causes=causes)
    assert isinstance(error, Invalid)
    assert error.causes == (("spec.a", "must be positive"), ("spec.b", "is required"))
    assert str(error).endswith("[spec.a: must be positive; spec.b: is required]")


@pytest.mark.parametrize(
    ("message", "advice"),
    [
        ('the spec replicas field ".spec.replicas" does not exist', "set the field"),
        ("failed to create typed patch object: .spec.size: field not declared in schema", "does not know"),
    ],
)
def test_what_an_old_server_calls_internal_but_is_not(message: str, advice: str) -> None:
    error = answer(500, "InternalError", f"Internal error occurred: {message}")
    assert isinstance(error, Invalid)
    assert advice in str(error)


@pytest.mark.parametrize(
    ("header", "body", "expected"),
    [
        ("7", {}, 7.0),
        (None, {"retryAfterSeconds": 2}, 2.0),
        ("1", {"retryAfterSeconds": 9}, 1.0),
        (None, {}, None),
        ("soon", {}, None),
    ],
)
def test_the_pause_a_server_asks_for(header: str | None, body: dict[str, Any], expected: float | None) -> None:
    error = from_answer("get", "x", 429, orjson.dumps({"details": body}), header)
    assert isinstance(error, Unavailable)
    assert error.retry_after == expected
    assert error.untouched


@pytest.mark.parametrize("body", [b"", b"404 page not found\n", b"[1]", b"\xff\xfe", b"<html>proxy</html>"])
def test_an_answer_that_is_not_json(body: bytes) -> None:
    error = from_answer("list", "pods in ns", 502, body)
    assert isinstance(error, Unavailable)
    assert "list pods in ns: 502" in str(error)


def test_errors_travel_between_processes() -> None:
    error = answer(422, "Invalid", "no", causes=[{"field": "a", "message": "b"}])
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is Invalid
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)
