"""What can go wrong between us and the Kubernetes API, as exceptions with the facts in fields.

Raised by every call of ``Cluster``; callers catch the class that means something to them (``NotFound``, ``Conflict``)
and let the others pass. Each message names the verb and the object, what the server said, and what to do.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import orjson

from modelyard.backoff import Backoff


class Cause(NamedTuple):
    """One field the server did not accept."""

    field: str
    message: str


class ClusterError(Exception):
    """Base of all errors of the cluster layer.

    ``verb`` is what was tried (``get``, ``apply`` ...), ``object`` on what (``Deployment shop/web``), ``status`` the
    HTTP status (``None`` when there was no answer) and ``reason`` the server's CamelCase reason.
    """

    remedy = ""

    def __init__(
        self, detail: str, *, verb: str = "", object: str = "", status: int | None = None, reason: str = ""
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.verb = verb
        self.object = object
        self.status = status
        self.reason = reason

    def __str__(self) -> str:
        subject = f"{self.verb} {self.object}".strip()
        answer = " ".join(part for part in (str(self.status or ""), self.reason) if part)
        text = ": ".join(part for part in (subject, answer, self.detail) if part)
        return f"{text} ({self.remedy})" if self.remedy else text


class NotFound(ClusterError):
    """The object does not exist (or its namespace does not)."""


class UnknownKind(ClusterError):
    """The server does not serve this kind, version or subresource."""

    remedy = (
        "is the CRD or API installed in this cluster, and in this version? "
        "`modelyard crds --install` installs those of Modelyard"
    )


class AlreadyExists(ClusterError):
    """Create: an object of that name is there already."""


class Conflict(ClusterError):
    """The object changed since it was read, or another field manager owns a field."""


WRITE_ATTEMPTS = 5
CONFLICTS = Backoff(0.04)
"""Attempts to write an object that other writers keep changing, and the delays between them."""


class TooOld(ClusterError):
    """The resource version or list continuation is no longer in the server's history (410)."""


class TooLarge(ClusterError):
    """The answer has more bytes than the request allows."""


class Invalid(ClusterError):
    """The server, or an admission webhook, rejects the request's content. ``causes`` names the fields."""

    causes: tuple[Cause, ...] = ()

    def __str__(self) -> str:
        listed = "; ".join(f"{cause.field}: {cause.message}" for cause in self.causes if cause.field)
        return f"{super().__str__()} [{listed}]" if listed and listed not in self.detail else super().__str__()


class Forbidden(ClusterError):
    """RBAC, a quota or an admission rule refuses the request (403)."""

    remedy = "check the Role or ClusterRole bound to this account with 'kubectl auth can-i'"


class Unauthorized(ClusterError):
    """The server does not accept our credentials (401)."""

    remedy = "renew the credentials in the kubeconfig or the service account token"


class Unavailable(ClusterError):
    """No usable answer: connection refused or cut, timeout, overload (429) or server failure (5xx).

    ``untouched`` is true when the server certainly did not act on the request. ``retry_after`` is the pause in seconds
    that the server asked for. ``attempts`` counts the tries made.
    """

    untouched = False
    permanent = False
    retry_after: float | None = None
    attempts = 1

    def __str__(self) -> str:
        return super().__str__() + (f", tried {self.attempts} times" if self.attempts > 1 else "")


class NotConfigured(ClusterError):
    """There is no usable way to the cluster: no kubeconfig and no service account, or a damaged one."""


_BY_STATUS: dict[int, type[ClusterError]] = {
    400: Invalid,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: TooOld,
    422: Invalid,
}

# What servers report as an internal error although the request itself is at fault; repeating it is no use.
_REFUSED_AS_500 = {
    "failed to create typed patch object": "the manifest has a field that the schema does not know",
    "the spec replicas field": "set the field on the object once; until then it cannot be scaled",
}


def from_answer(verb: str, object: str, status: int, body: bytes, retry_after: str | None = None) -> ClusterError:
    """The error for an HTTP answer of 300 or more; ``body`` is a ``Status`` object or plain text."""
    answer = _parse_status(body)
    details: dict[str, Any] = answer.get("details") or {}
    reason = str(answer.get("reason") or "")
    detail = str(answer.get("message") or body[:500].decode("utf-8", "replace").strip() or "no explanation given")
    kind = _BY_STATUS.get(status, Unavailable if status == 429 or status >= 500 else ClusterError)
    if status == 404 and not details.get("name"):
        kind = UnknownKind  # the path itself is not served; a missing object is named in the details
    if status == 409 and reason == "AlreadyExists":
        kind = AlreadyExists
    if status == 500:
        for text, advice in _REFUSED_AS_500.items():
            if text in detail:
                kind, detail = Invalid, f"{detail}; {advice}"
    error = kind(detail, verb=verb, object=object, status=status, reason=reason)
    if isinstance(error, Invalid):
        error.causes = tuple(
            Cause(str(cause.get("field") or "").lstrip("."), str(cause.get("message") or ""))
            for cause in details.get("causes") or ()
        )
    if isinstance(error, Unavailable):
        error.untouched = status == 429
        error.retry_after = _seconds(retry_after) or _seconds(details.get("retryAfterSeconds"))
    return error


def _parse_status(body: bytes) -> dict[str, Any]:
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _seconds(value: object) -> float | None:
    try:
        return max(0.0, float(str(value)))
    except ValueError:
        return None
