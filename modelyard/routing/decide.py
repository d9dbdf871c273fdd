"""What happens to one request: where it goes, in which order, with which bytes, or what it is answered. Pure.

A front (the part with sockets) asks ``question`` -> ``destination`` -> ``forward`` and then, for each attempt,
``calls`` -> ``begun`` -> ``answered`` -> ``ended``. In between it may wait for whatever it likes: nothing is held.
Time is an argument and chance is injected. Source: kthena-routing, 6 to 9, 12, 14 and 15.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

from modelyard.objects import Key
from modelyard.routing import body, errors
from modelyard.routing.body import Connector, ModelRequest
from modelyard.routing.errors import ErrorAnswer
from modelyard.routing.fleet import RoutedFleet
from modelyard.routing.objects import Server
from modelyard.routing.plugins import Configuration
from modelyard.routing.schedule import (
    Attempt,
    Context,
    FilteredOut,
    Memo,
    PrefixCaches,
    RoutedPod,
    pair,
    prefix_hashes,
    rank,
)
from modelyard.routing.table import Asked, Destination

GENERATES = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"})
"""Paths whose answers are generated token by token: these alone are split into prefill and decode."""
WRITES = GENERATES | {"/v1/audio/transcriptions", "/v1/audio/translations"}
"""Paths whose answers are text."""
PATHS = GENERATES | {
    *("/v1/embeddings", "/v1/rerank", "/v2/rerank", "/rerank", "/v1/score", "/score", "/v1/classify", "/classify"),
    *("/v1/pooling", "/pooling", "/v1/moderations", "/v1/images/generations", "/v1/images/edits"),
    *("/v1/audio/transcriptions", "/v1/audio/translations", "/v1/audio/speech", "/v1/messages/count_tokens"),
    *("/tokenize", "/detokenize"),
}
"""Every path that is passed on. No others: engines are also managed by requests, such as those that load adapters."""
FORMS = WRITES - GENERATES | {"/v1/images/edits"}
"""Paths that take a form (``multipart/form-data``)."""
USAGE_ASKED = frozenset({"/v1/chat/completions", "/v1/completions"})
"""Paths where a stream tells its usage only when it is asked for it."""
MOST_SESSIONS = 10_000
"""Sessions of one namespace whose pods are known; beyond, the one that was not heard of for longest is forgotten."""
OWN_TRIES = 5
"""Attempts altogether without a retry policy, pods that came meanwhile included."""
SESSION = "x-session-id"


class Arrival(NamedTuple):
    """A request as it came: the path as written, without the query, and the first value of each header by its name in
    lower case. ``among``: the addresses of the only pods that a gateway lets it go to."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    among: frozenset[str] | None = None


class Question(NamedTuple):
    """A request that was understood. ``tokens`` is the estimate of its prompt; ``text`` the head of it."""

    request: ModelRequest
    asked: Asked
    text: str
    tokens: int
    among: frozenset[str] | None = None

    @property
    def model(self) -> str:
        """The model as the client named it."""
        return self.request.model

    @property
    def writes(self) -> bool:
        """Return whether answers to it are text."""
        return self.asked.path in WRITES


@dataclass(slots=True)
class Forward:
    """A request on its way. ``attempts`` are the ranked ways; ``withhold``: the router alone asked for usage."""

    question: Question
    destination: Destination
    server: Server
    attempts: Sequence[Attempt]
    upstream_model: str
    changes: Mapping[str, Any]
    hashes: Sequence[int]
    connector: Connector | None = None

    @property
    def withhold(self) -> bool:
        """Whether the event that tells the usage is kept from the client."""
        return "stream_options" in self.changes


class Calls(NamedTuple):
    """The bodies of one attempt. ``prefill`` is ``None`` where one pod does all."""

    body: bytes
    prefill: bytes | None = None


class Decider:
    """The decisions of one router. ``fleet`` is what it knows; ``configuration`` may be replaced at any time."""

    def __init__(self, configuration: Configuration | None = None, random: Random | None = None) -> None:
        self.fleet = RoutedFleet()
        self.configuration = configuration or Configuration()
        self._random = random or Random()
        self._caches = PrefixCaches()
        self._memos: dict[Key, Memo] = {}
        self._sessions: dict[str, OrderedDict[tuple[Key, str], Key]] = {}  # by namespace

    def refusal(self, arrival: Arrival) -> ErrorAnswer | None:
        """Return the answer to a request that is refused whatever its body is."""
        path, headers = arrival.path, arrival.headers
        if path not in PATHS:
            return errors.unknown_path(path)
        if arrival.method != "POST":
            return errors.wrong_method(arrival.method, path)
        if headers.get("content-encoding", "identity") != "identity":
            return errors.encoded(headers["content-encoding"])
        kind = headers.get("content-type", "")
        if kind.strip().lower().startswith("multipart/form-data") and path not in FORMS:
            return errors.not_json(path)
        return None

    def question(
        self, arrival: Arrival, summary: body.BodySummary | ErrorAnswer | None = None
    ) -> Question | ErrorAnswer:
        """Read a request, or say what is wrong with it. ``summary``: its body, where that has been read already."""
        if refused := self.refusal(arrival):
            return refused
        path, headers = arrival.path, arrival.headers
        if summary is None:
            # A question lasts as long as its answer: no more of the prompt than is ever hashed.
            summary = body.summarize(arrival.body, headers.get("content-type", ""), self.configuration.most_hashed)
        if isinstance(summary, ErrorAnswer):
            return summary
        request = ModelRequest(arrival.body, summary.options, summary.model, summary.span)
        asked = Asked(summary.model, path, headers, headers.get(SESSION, ""))
        text, tokens = summary.head, summary.tokens
        return Question(request, asked, text, tokens, arrival.among)

    def destination(self, question: Question) -> Destination | ErrorAnswer:
        """Which ModelServer it goes to, whether that has pods now or not."""
        # A session keeps its pod by a scorer; the draw among targets stays independent unless a header says so.
        found = self.fleet.table.find(question.asked, self.fleet.has_pods, self._random)
        if found is None:
            return errors.unknown_model(question.model)
        if found.server not in self.fleet.backends:
            return errors.no_server(found.server)
        return found

    def forward(
        self, question: Question, destination: Destination, now: float, tried: Container[RoutedPod] = ()
    ) -> Forward | ErrorAnswer:
        """The ranked ways to an answer at this time (seconds of the clock of the gauges), and the edits of the body.

        Pods that were ``tried`` are left out; with a retry policy they are taken again where no others are left.
        """
        backend = self.fleet.backends.get(destination.server)
        if backend is None:
            return errors.no_server(destination.server)
        server = backend.server
        serving: Sequence[RoutedPod] = backend.serving
        if question.among is not None:
            serving = [one for one in serving if one.address in question.among]
        if server.problem is not None or not serving:
            return errors.no_pods(destination.server)
        plugins = self.configuration.of(str(destination.server))
        upstream = question.model if destination.lora or not server.model else server.model
        by_prefix = "prefix-cache" in dict(plugins.scores)
        hashes = prefix_hashes(question.model, question.text, plugins) if by_prefix else ()
        session, sessions = question.asked.session, self._sessions.get(destination.server.namespace)
        last_pod = sessions.get((destination.server, session[:256])) if session and sessions is not None else None
        context = Context(upstream, destination.lora, hashes, last_pod)
        cache = self._caches.of(destination.server, plugins.max_hashes)
        memo: Memo | None = self._memos.get(destination.server) or self._memos.setdefault(destination.server, Memo())
        if tried or question.among is not None:
            memo = None  # without what was tried, or what is not allowed, it is another list of pods, for this one time
        connector: Connector | None = None
        try:
            prefill = _untried(backend.prefill, tried, server) if question.asked.path in GENERATES else ()
            if prefill:
                connector = Connector.of(server.engine, server.connector)
                decode = _untried(serving, tried, server)
                attempts = pair(decode, prefill, context, plugins, cache, now, self._random, memo)
            else:
                pods = _untried(serving, tried, server)
                attempts = rank(pods, context, plugins, cache, now, self._random, memo=memo)
        except FilteredOut as why:
            return errors.overloaded(why)
        changes: dict[str, Any] = {} if upstream == question.model else {"model": upstream}
        if question.asked.path in USAGE_ASKED:
            changes |= body.usage_request(question.request.data)
        return Forward(question, destination, server, attempts, upstream, changes, hashes, connector)

    def calls(self, forward: Forward, attempt: Attempt) -> Calls:
        """The bodies to send for an attempt; ``Calls.body`` is that of the answering pod.

        With parameters from the prefill call it is made by ``decode_body`` instead, after that call.
        """
        request, changes = forward.question.request, forward.changes
        if attempt.prefill is None or forward.connector is None:
            return Calls(body.with_changes(request, changes))
        room = self._random.getrandbits(63) if forward.connector is Connector.BOOTSTRAP else 0
        model = {name: value for name, value in changes.items() if name == "model"}
        path = forward.question.asked.path
        first = {**body.prefill_changes(request.data, forward.connector, room, path), **model}
        return Calls(self.decode_body(forward, attempt, None, room), body.with_changes(request, first))

    def decode_body(self, forward: Forward, attempt: Attempt, prefilled: Any, room: int = 0) -> bytes:
        """The body for the decode pod of a pair, after a prefill call that answered ``prefilled``."""
        assert forward.connector is not None
        assert attempt.prefill is not None
        request = forward.question.request
        told = body.decode_changes(request.data, forward.connector, prefilled, room, attempt.prefill.host)
        told.pop("stream_options", None)
        return body.with_changes(request, {**told, **forward.changes})

    def begun(self, forward: Forward, attempt: Attempt) -> None:
        """An attempt is being sent. Every ``begun`` has its ``ended``."""
        for pod in _pods(attempt):
            pod.outstanding += 1
            pod.queued_tokens += forward.question.tokens

    def answered(self, forward: Forward, attempt: Attempt, status: int) -> None:
        """The headers of the answer are there: the prompt is done, and its pods hold it."""
        for pod in _pods(attempt):
            pod.queued_tokens -= forward.question.tokens
        if not 200 <= status < 300:
            return
        where = forward.destination.server
        for pod in _pods(attempt):
            self._caches.learn(where, pod.key, forward.hashes)
        if session := forward.question.asked.session:
            sessions = self._sessions.setdefault(where.namespace, OrderedDict())
            sessions[where, session[:256]] = attempt.pod.key
            sessions.move_to_end((where, session[:256]))
            if len(sessions) > MOST_SESSIONS:
                sessions.popitem(last=False)

    def ended(self, forward: Forward, attempt: Attempt, *, was_answered: bool) -> None:
        """An attempt is over, one way or another."""
        for pod in _pods(attempt):
            pod.outstanding -= 1
            if not was_answered:
                pod.queued_tokens -= forward.question.tokens

    def forget(self, server: Key, pod: RoutedPod) -> None:
        """A pod's process is gone, and with it what it held."""
        self._caches.forget(server, pod.key)
        if server not in self.fleet.backends:
            self._caches.close(server)
            self._memos.pop(server, None)
        sessions = self._sessions.pop(server.namespace, None) or OrderedDict()
        if left := OrderedDict(one for one in sessions.items() if (one[0][0], one[1]) != (server, pod.key)):
            self._sessions[server.namespace] = left


def most_attempts(forward: Forward) -> int:
    """Attempts that a request may have altogether."""
    return OWN_TRIES if forward.server.retry is None else forward.server.retry.attempts + 1


def copied_bytes(forward: Forward, attempt: Attempt) -> int:
    """Return the bytes, about, of the edited copies of a body that an attempt sends."""
    paired = attempt.prefill is not None
    return len(forward.question.request.raw) * (paired + (paired or bool(forward.changes)))


def pause(forward: Forward, number: int, jitter: float) -> float:
    """Return the seconds before attempt ``number`` (0: the first); ``jitter`` (0 to 1) adds up to half the interval."""
    return forward.server.retry.interval * (1 + jitter / 2) if number and forward.server.retry else 0.0


def _untried(pods: Sequence[RoutedPod], tried: Container[RoutedPod], server: Server) -> Sequence[RoutedPod]:
    if not tried:
        return pods
    return [one for one in pods if one not in tried] or (pods if server.retry is not None else ())


def _pods(attempt: Attempt) -> tuple[RoutedPod, ...]:
    return (attempt.pod,) if attempt.prefill is None else (attempt.pod, attempt.prefill)
