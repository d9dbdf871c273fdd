"""Choice of runs to start, from plans that need one, their objects' claims and the fates of earlier runs. Pure.

What a plan creates or scales is done by a run of the lifecycle's deployment (``Plan.needs_run``). What is refused, or
waits for a person, creates nothing and so starts none. At most one run at a time may work on an object: the one that
the object's annotation ``CLAIM`` names. It is set before the run is created, so that whoever dies in between leaves a
claim without a run, which is simply replaced; and a run that is no longer named stops writing (``fence.RunFence``).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from modelyard.backoff import Backoff
from modelyard.objects import LONGEST_MESSAGE, Key, cut, timestamp
from modelyard.reconcile.plans.claims import Claim
from modelyard.reconcile.plans.plan import CLAIM, Plan, Ref, Subject
from modelyard.reconcile.plans.run_limits import RUNS, RunAdmission, RunLoad
from modelyard.reconcile.plans.status import is_status_due

MOST_IN_A_BATCH = 50
CHILD_PAUSE = 60.0
"""Seconds for which a child run is left to its parent, which creates it, and runs it again when it has failed."""
RETRIES = Backoff(15.0, longest=600.0)
"""Delays between attempts at the same thing."""

UNATTENDED_SECONDS = 600.0
"""Seconds after which a run that nobody waits for ends where it would only look on: what is under way goes on in the
cluster, another run is started when there is something to do, and others may have its place at the worker."""

CLOCKS_DIFFER = 60.0
"""Seconds by which a moment may be ahead: one beyond was set by a clock that was wrong, and says nothing."""

EXPECTED_START = 10.0
"""Seconds within which a worker starts a run where it has a free slot."""

MOST_ATTEMPTS = 999_999
"""Attempts that a claim counts: it has six digits for them."""

"""Only what our keys are made of: what a claim names is asked of Prefect, together with what all others name."""


class RunFate(NamedTuple):
    """Fate of a run. ``ended`` is the time of its end (epoch seconds, ``None``: not yet); ``died``: it crashed.

    ``queued`` is since when it waits for a worker (``None``: it has started), ``name`` its name in Prefect. ``child``:
    it did not complete, and the run that started it runs it again. ``cancelled``: a child that a person, or the end of
    its parent, has cancelled; it is left so, unless its object changes.
    """

    ended: float | None
    died: bool = False
    queued: float | None = None
    name: str = ""
    child: bool = False
    cancelled: bool = False


@dataclass(frozen=True, slots=True)
class Acting:
    """How plans of one lifecycle that act are carried out: by runs of ``deployment``, ``batch`` objects in each.

    ``parameters`` are what its runs are given beside the objects.
    """

    deployment: str
    batch: int = 1
    parameters: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 1 <= self.batch <= MOST_IN_A_BATCH:
            raise ValueError(f"a run takes 1 to {MOST_IN_A_BATCH} objects, not {self.batch}")


@dataclass(frozen=True, slots=True)
class Start:
    """A run to start, and the claim to set on each of its objects first. ``key`` is its idempotency key."""

    deployment: str
    key: str
    claims: tuple[tuple[Subject, Claim], ...]
    parameters: Mapping[str, object] = field(default_factory=dict)


def fingerprint(plan: Plan) -> str:
    """What the plan does, in a few letters: the same work on the same object is the same fingerprint."""
    subject = plan.subject
    work = (subject.uid, subject.generation, [*map(_without_claim, plan.deeds)], plan.finalizer, plan.part)
    text = json.dumps(work, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _without_claim(deed: object) -> object:
    """Return a deed of a plan without the claim of a child run, which has the moment of planning in it."""
    metadata = deed.get("metadata") if isinstance(deed, Mapping) else None
    if not isinstance(deed, Mapping) or not metadata or CLAIM not in metadata.get("annotations", ()):
        return deed
    annotations = {name: text for name, text in metadata["annotations"].items() if name != CLAIM}
    return {**deed, "metadata": {**metadata, "annotations": annotations}}


def named(plans: Iterable[Plan]) -> set[str]:
    """The runs that have to be looked up before anything is dispatched."""
    claims = (Claim.read(plan.subject.claim) for plan in plans if plan.acts)
    return {claim.run for claim in claims if claim is not None}


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Runs to start, in this order, and why other objects that are due wait for their turn."""

    starts: tuple[Start, ...] = ()
    waiting: Mapping[Ref, str] = field(default_factory=dict)


@dataclass(frozen=True)
class KnownRuns:
    """Fates of the runs that objects name, and the runs that have not ended (``None``: no run has to be started)."""

    fates: Mapping[str, RunFate] = field(default_factory=dict)
    load: RunLoad | None = None


class _Due(NamedTuple):
    lifecycle: int
    acting: Acting
    plan: Plan
    claim: Claim

    @property
    def namespace(self) -> str:
        return self.plan.subject.key.namespace


Work = Iterable[tuple[Acting, Iterable[Plan]]]
"""Plans of each lifecycle whose plans are carried out by runs."""


def is_due(plan: Plan, runs: Mapping[str, RunFate], now: float) -> bool:
    """Return whether the plan needs a new run."""
    return plan.needs_run and _next(plan, runs, now) is not None


def dispatch(work: Work, runs: Mapping[str, RunFate], now: float, load: RunLoad | None = None) -> Dispatch:
    """Choose the runs to start for the plans of all lifecycles together, in fair order and within the limits.

    ``runs`` holds the fates of the runs that plans name (``named``); a missing one was never created, or is forgotten.
    ``load`` holds the runs that have not ended. The order is that of ``RunAdmission.order``; urgency counts only within
    a namespace. Objects of several namespaces share a run where it takes more than one object.
    """
    admission = RunAdmission(load or RunLoad())
    due = [
        _Due(number, acting, plan, claim)
        for number, (acting, plans) in enumerate(work)
        for plan in plans
        if plan.needs_run and (claim := _next(plan, runs, now)) is not None
    ]
    ordered = admission.order(
        due,
        lambda item: item.namespace,
        lambda item: (item.lifecycle, item.acting.deployment, item.acting.batch),
        lambda item: (-item.plan.urgency, item.plan.subject.key.name),
    )
    batches: list[list[_Due]] = []
    last: dict[int, list[_Due]] = {}
    waiting = {}
    for item in ordered:
        batch = last.get(item.lifecycle)
        opened = batch is None or len(batch) == item.acting.batch
        if opened or batch is None:
            batch = []
        counted = any(member.namespace == item.namespace for member in batch)
        if not counted:
            wait = admission.reason_to_wait if opened else admission.reason_to_join
            if reason := wait(item.namespace):
                waiting[item.plan.subject.ref] = reason
                continue
            admission.add(item.namespace, opened)
        if opened:
            batches.append(batch)
            last[item.lifecycle] = batch
        batch.append(item)
    return Dispatch(tuple(map(_start, batches)), waiting)


def _start(batch: Sequence[_Due]) -> Start:
    key = _key([(item.plan.subject, item.claim) for item in batch])
    claims = tuple((item.plan.subject, item.claim._replace(run=key)) for item in batch)
    return Start(batch[0].acting.deployment, key, claims, batch[0].acting.parameters)


def awaited_run(plan: Plan, acting: Acting, runs: Mapping[str, RunFate], now: float) -> str:
    """Say which flow run the plan's work waits for, and since when; empty where it is under way, or about to be.

    A run that starts within ``EXPECTED_START`` seconds is not worth a write of the status. Only a run for this object
    alone is named.
    """
    claim = Claim.read(plan.subject.claim) if plan.needs_run else None
    if claim is None or claim.at > now:
        return ""
    run = runs.get(claim.run)
    if run is None:  # another is created in a moment
        return ""
    # A batch is named after another object, and anybody may write a claim that names anybody's run.
    own = is_own_key(claim.run, plan.subject.ref)
    name = f"flow run {run.name!r} of {acting.deployment}" if own else f"a flow run of {acting.deployment}"
    if run.cancelled and plan.subject.generation == 1:
        return f"{name} was cancelled at {timestamp(run.ended or now)}; retry it, or start its parent again"
    if run.ended is not None:
        again = _latest(now, claim.at, run.ended) + pause_after(claim.attempt, run.died)
        if claim.fingerprint != fingerprint(plan) or again - now < EXPECTED_START:
            return ""
        ended = f"{name} {'died' if run.died else 'ended'} at {timestamp(run.ended)}"
        return f"{ended}; the next is started at {timestamp(again)}"
    if run.queued is None or now - run.queued < EXPECTED_START:
        return ""
    remedy = f"check that a worker runs, and that work queue {RUNS} has a free place"
    return f"waiting since {timestamp(run.queued)} for {name} to start; {remedy}"


def with_awaited_run(plan: Plan, text: str, now: float) -> Plan:
    """Return the plan with ``text`` added to every condition that is not ``True``."""
    if not text or plan.wanted is None:
        return plan
    conditions = tuple(
        replace(one, message=f"{cut(one.message, LONGEST_MESSAGE - len(text) - 2)}; {text}")
        if one.status != "True"
        else one
        for one in plan.wanted.conditions
    )
    status = replace(plan.wanted, conditions=conditions)
    due = is_status_due(status, plan.stored, now, 0.0, plan.subject.uid)
    return replace(plan, message=f"{plan.message}; {text}", wanted=status, status=status if due else None)


def is_free(claim_text: str, runs: Mapping[str, RunFate], now: float) -> bool:
    """Return whether no run works on an object with this claim: none was created, or it ended or has not started."""
    claim = Claim.read(claim_text)
    if claim is None:
        return True
    run = runs.get(claim.run)
    if run is None:
        return now >= _latest(now, claim.at) + RETRIES.first
    return run.ended is not None or run.queued is not None


def _next(plan: Plan, runs: Mapping[str, RunFate], now: float) -> Claim | None:
    """The claim for the plan's next run, without the run's name; ``None`` while there is none to start."""
    before, wanted = Claim.read(plan.subject.claim), fingerprint(plan)
    if before is None:
        return Claim("", wanted, 1, now)
    run = runs.get(before.run)
    if run is None:  # it was never created, which is no attempt; a claim of other work may be that of a child
        pause = RETRIES.first if before.fingerprint == wanted else CHILD_PAUSE
        return Claim("", wanted, before.attempt, now) if now >= _latest(now, before.at) + pause else None
    if run.ended is None or (run.child and now < run.ended + CHILD_PAUSE):
        return None
    if run.cancelled and plan.subject.generation == 1:
        return None
    if before.fingerprint != wanted:
        return Claim("", wanted, 1, now)  # it got somewhere, or there is something else to do
    if now < _latest(now, before.at, run.ended) + pause_after(before.attempt, run.died):
        return None
    return Claim("", wanted, min(before.attempt + 1, MOST_ATTEMPTS), now)


def _latest(now: float, *moments: float) -> float:
    """Return the latest of the moments (epoch seconds) that a clock that was right may have set."""
    return max((moment for moment in moments if moment <= now + CLOCKS_DIFFER), default=-math.inf)


def pause_after(attempt: int, died: bool = False) -> float:
    """Seconds to wait after an attempt in vain; a run that just died is replaced at once, the first time."""
    return RETRIES.delay(attempt - died)


def _key(members: Sequence[tuple[Subject, Claim]]) -> str:
    keys = [_own_key(subject.ref, claim) for subject, claim in members]
    if len(keys) == 1:
        return keys[0]
    digest = hashlib.sha256("\n".join(sorted(keys)).encode()).hexdigest()[:24]
    return f"{members[0][0].kind.kind}/batch of {len(keys)}/{digest}".replace(" ", "-")


def child_claim(body: Mapping[str, Any], now: float) -> Claim:
    """Return the claim of the child run that is to work on an object which is about to be created."""
    metadata = body["metadata"]
    ref = Ref(body["kind"], Key(metadata.get("namespace", ""), metadata["name"]))
    text = json.dumps(body, sort_keys=True, default=str)
    claim = Claim("", hashlib.sha256(text.encode()).hexdigest()[:12], 1, now)
    return claim._replace(run=_own_key(ref, claim))


def is_own_key(run: str, ref: Ref) -> bool:
    """Return whether a claim names a run for this object alone."""
    return run.startswith(f"{ref.kind}/{ref.key.namespace}/{ref.key.name}/")


def _own_key(ref: Ref, claim: Claim) -> str:
    # With the moment: the same work may be due a second time, and Prefect would answer with the run of the first.
    return f"{ref.kind}/{ref.key.namespace}/{ref.key.name}/{claim.fingerprint}/{claim.attempt}/{claim.at:.0f}"
