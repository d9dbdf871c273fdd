"""What a router answers itself, in the shape that OpenAI's clients read, and when it tries another pod. Pure.

Source: kthena-routing, 9 and 14.3.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import orjson

from modelyard.routing.limits import OverBudget
from modelyard.routing.objects import RetryPolicy

RETRY_AFTER = 5
"""Seconds after which a client may ask again where nothing better is known."""
_UNASKED_RETRIES = 4


class ErrorAnswer(NamedTuple):
    """An error as it is sent. ``reason`` is a short word from a fixed set, for metrics and the log."""

    status: int
    message: str
    reason: str
    type: str
    code: str | None = None
    param: str | None = None
    retry_after: int | None = None

    @property
    def body(self) -> bytes:
        """The JSON that is sent."""
        told = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return orjson.dumps({"error": told})

    @property
    def headers(self) -> dict[str, str]:
        """The headers beside the content type."""
        return {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}


def malformed(message: str, param: str | None = None) -> ErrorAnswer:
    """400: the body cannot be read, or names no model."""
    return ErrorAnswer(400, message, "request_parsing", "invalid_request_error", None, param)


def unknown_path(path: str) -> ErrorAnswer:
    """404: no path that names a model."""
    text = f"unknown path {path[:256]!r}: see docs/routing.md for those that are served"
    return ErrorAnswer(404, text, "unknown_path", "invalid_request_error", "unknown_url")


def wrong_method(method: str, path: str, served: str = "POST") -> ErrorAnswer:
    """405: the path is served by another method."""
    text = f"{path} takes {served}, not {method[:32]}"
    return ErrorAnswer(405, text, "unknown_path", "invalid_request_error", "method_not_allowed")


def encoded(encoding: str) -> ErrorAnswer:
    """415: a compressed body, which engines do not read either."""
    text = f"the body is encoded as {encoding[:64]!r}: send it as it is"
    return ErrorAnswer(415, text, "request_parsing", "invalid_request_error", "unsupported_encoding")


def not_json(path: str) -> ErrorAnswer:
    """400: a form on a path for JSON."""
    return malformed(f"invalid request body: {path} takes JSON, not multipart/form-data; send application/json")


def too_large(most: int) -> ErrorAnswer:
    """413: more bytes than a body may have."""
    text = f"the body is larger than {most} bytes"
    return ErrorAnswer(413, text, "request_parsing", "invalid_request_error", "request_too_large")


def head_too_large(most: int) -> ErrorAnswer:
    """431: more headers than a request may have."""
    text = f"the headers are larger than {most} bytes together"
    return ErrorAnswer(431, text, "request_parsing", "invalid_request_error", "headers_too_large")


def too_slow(seconds: float) -> ErrorAnswer:
    """408: the body did not come in time."""
    text = f"the body was not complete within {seconds:g} s"
    return ErrorAnswer(408, text, "request_parsing", "invalid_request_error", "request_timeout")


def busy(what: str) -> ErrorAnswer:
    """503: the router itself holds as much as it may."""
    text = f"the router is at its limit: {what}"
    return ErrorAnswer(503, text, "router_limit", "service_unavailable_error", None, None, RETRY_AFTER)


def too_many(what: str) -> ErrorAnswer:
    """429: what one client has not sent as a whole yet is as much as it may be."""
    text = f"this address has too much on its way: {what}"
    return ErrorAnswer(429, text, "client_limit", "rate_limit_error", "rate_limit_exceeded", None, RETRY_AFTER)


def internal() -> ErrorAnswer:
    """500: a defect of the router."""
    return ErrorAnswer(500, "the router failed on this request", "internal", "api_error")


def unauthorized(message: str) -> ErrorAnswer:
    """401: no token, or not a good one."""
    return ErrorAnswer(401, message, "authentication", "authentication_error", "invalid_api_key")


def unknown_model(model: str) -> ErrorAnswer:
    """404: no route, no rule or no target for this name."""
    text = f"route not found: no model {model[:256]!r} is served for this request"
    return ErrorAnswer(404, text, "route_not_found", "invalid_request_error", "model_not_found", "model")


def in_background() -> ErrorAnswer:
    """400: an answer whose tokens nobody would count."""
    text = "background is true: the tokens of this model are limited, and those of a response in the background cannot "
    return malformed(f"{text}be counted; leave background out", "background")


def no_server(server: object) -> ErrorAnswer:
    """404: the route names a ModelServer that is not there."""
    text = f"can't find model server: {server}"
    return ErrorAnswer(404, text, "model_server_matching", "invalid_request_error", "model_not_found", "model")


def no_pods(server: object) -> ErrorAnswer:
    """503: the ModelServer has no ready pod."""
    text = f"no available pods for model server: {server}"
    return ErrorAnswer(503, text, "pod_discovery", "service_unavailable_error", None, None, RETRY_AFTER)


def overloaded(why: object) -> ErrorAnswer:
    """503: no pod is left to send to."""
    text = f"can't schedule to target pod: {why}"
    return ErrorAnswer(503, text, "scheduling", "service_unavailable_error", None, None, RETRY_AFTER)


def limited(refused: OverBudget) -> ErrorAnswer:
    """429: beyond a budget of the route."""
    after = None if refused.retry_after is None else max(1, math.ceil(refused.retry_after))
    remedy = "the prompt is larger than the whole budget; shorten it" if after is None else f"try again in {after} s"
    text = f"{refused.kind} token rate limit exceeded: {remedy}"
    return ErrorAnswer(429, text, f"{refused.kind}_rate_limit", "rate_limit_error", "rate_limit_exceeded", None, after)


def failed(*, timed_out: bool, paired: bool = False) -> ErrorAnswer:
    """502, or 504 where the last attempt took too long: no pod gave an answer."""
    text = "all prefill/decode attempts failed" if paired else "request to all pods failed"
    status = 504 if timed_out else 502
    return ErrorAnswer(status, text, "proxy", "timeout_error" if timed_out else "api_error")


def queue_timeout() -> ErrorAnswer:
    """504: waited too long for its turn."""
    return ErrorAnswer(504, "Request processing timed out in queue", "queue", "timeout_error", None, None, RETRY_AFTER)


def tries(ranked: int, retry: RetryPolicy | None) -> list[int]:
    """The attempts for a request with so many ranked pods: which of them each is at.

    Without a policy each of the best five once; with one ``attempts`` more than the first, from the top again where the
    list ends.
    """
    count = min(ranked, 1 + _UNASKED_RETRIES) if retry is None else retry.attempts + 1
    return [number % ranked for number in range(count)] if ranked else []


def is_retriable(status: int | None, *, others: bool) -> bool:
    """Whether an attempt that ended so may be followed by another, as long as no byte went to the client.

    ``None``: no response headers came. ``others``: another pod is left. All else of the engine goes to the client.
    """
    return status in (None, 502, 503, 504) or (status == 429 and others)
