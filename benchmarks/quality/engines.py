"""The simulated engines and their router compiled: the same rules as ``modelyard.engine.core`` and
``modelyard.replay.simulation.fleet``, request by request. For searches that run a fleet hundreds of times.

What the published table says of a policy comes from ``modelyard replay`` itself. ``agreement`` compares both request by
request. Left out: jitter, prefix caches, queue limits, nodes, longest gaps. Times are seconds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

BLOCK = 16
CHUNKS = 512
HEAP = 1024
NOBODY = -1
QUEUED, WAITING, PREFILL, DECODE, DONE, BROKEN, REFUSED = range(7)
STARTING, READY, DRAINING, GONE = range(4)
TURN, NEXT, HEAD, TAIL, SERVING = range(5)
# Columns of ``World.request``, ``moment``, ``pod`` and ``clock``.
PROMPT, OUTPUT, STATE, TOKENS, OFFSET, FINISH, LEFT, BEFORE, AFTER, LINK = range(10)
AT, FIRST, END, ELIGIBLE = range(4)
LIFE, COUNT, BATCH, STEP, BUSY, DECODING, FREE, RUNNING, OUTSTANDING, ENDS, CHUNKS_NOW = range(11)
READY_AT, KILL_AT, ENDED, CLOCK, ANCHOR, LENGTH = range(6)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class World(NamedTuple):
    """Requests (``request`` and ``moment``) and pods (all the others, but for what is the router's) in few arrays."""

    request: Ints
    moment: Floats
    pod: Ints
    clock: Floats
    lists: Ints
    """Of each pod: first and last arriving, waiting, prefilling request, and the youngest running one."""
    due: Ints
    heap: Ints
    chunk: Ints
    speed: Floats
    limits: Ints
    waiting: Ints
    """Requests of each pod that wait for their batch."""
    order: Ints
    queue: Ints
    router: Ints
    queue_limit: Floats


def world(at: Floats, prompt: Ints, output: Ints, pods: int, queue_limit: float) -> World:
    """No pods yet, nothing arrived."""
    n = len(at)
    request = np.zeros((n, LINK + 1), dtype=np.int64)
    request[:, PROMPT], request[:, OUTPUT] = prompt, output
    moment = np.full((n, ELIGIBLE + 1), np.nan)
    moment[:, AT] = at
    pod = np.zeros((pods, CHUNKS_NOW + 1), dtype=np.int64)
    pod[:, LIFE] = GONE
    clock = np.zeros((pods, LENGTH + 1))
    clock[:, KILL_AT] = np.inf
    clock[:, ENDED] = np.nan

    def ints(*shape: int) -> Ints:
        return np.zeros(shape, dtype=np.int64)

    return World(
        request, moment, pod, clock, np.full((pods, 7), NOBODY, dtype=np.int64), ints(pods, BLOCK), ints(pods, HEAP),
        ints(pods, CHUNKS, 2), np.zeros((pods, 4)), ints(pods, 4), ints(pods), ints(pods), ints(n + 1), ints(5),
        np.array([queue_limit]),
    )  # fmt: skip


@njit(cache=True, inline="always")
def _blocks(tokens):
    return -(-tokens // BLOCK)


@njit(cache=True)
def _push(w, p, key):
    heap = w.heap[p]
    if w.pod[p, ENDS] == HEAP:
        # Entries of requests that were preempted meanwhile; sorted, what is left is a heap again.
        n = 0
        for j in range(HEAP):
            r = heap[j] & 0xFFFFFF
            if w.request[r, STATE] == DECODE and w.request[r, FINISH] == heap[j] >> 24:
                heap[n] = heap[j]
                n += 1
        heap[:n].sort()
        w.pod[p, ENDS] = n
    i = w.pod[p, ENDS]
    w.pod[p, ENDS] += 1
    heap[i] = key
    while i:
        j = (i - 1) >> 1
        if heap[j] <= heap[i]:
            break
        heap[i], heap[j] = heap[j], heap[i]
        i = j


@njit(cache=True)
def _pop(w, p):
    heap = w.heap[p]
    w.pod[p, ENDS] -= 1
    n = w.pod[p, ENDS]
    heap[0] = heap[n]
    i = 0
    while True:
        j = 2 * i + 1
        if j >= n:
            break
        if j + 1 < n and heap[j + 1] < heap[j]:
            j += 1
        if heap[i] <= heap[j]:
            break
        heap[i], heap[j] = heap[j], heap[i]
        i = j


@njit(cache=True)
def _earliest(w, p):
    """The step of the next end, stale entries dropped; a large number without any."""
    while w.pod[p, ENDS]:
        key = w.heap[p, 0]
        step, r = key >> 24, key & 0xFFFFFF
        if w.request[r, STATE] == DECODE and w.request[r, FINISH] == step:
            return step
        _pop(w, p)
    return 1 << 60


@njit(cache=True)
def _append(w, p, which, r):
    w.request[r, LINK] = NOBODY
    if w.lists[p, which] == NOBODY:
        w.lists[p, which] = r
    else:
        w.request[w.lists[p, which + 1], LINK] = r
    w.lists[p, which + 1] = r


@njit(cache=True)
def _take(w, p, which):
    r = w.lists[p, which]
    w.lists[p, which] = w.request[r, LINK]
    return r


@njit(cache=True)
def _leave(w, p, r):
    """Out of the running ones, which are linked in order of admission."""
    b, a = w.request[r, BEFORE], w.request[r, AFTER]
    if b != NOBODY:
        w.request[b, AFTER] = a
    if a != NOBODY:
        w.request[a, BEFORE] = b
    else:
        w.lists[p, 6] = b
    w.pod[p, RUNNING] -= 1


@njit(cache=True)
def _slot(w, r):
    return (w.request[r, OFFSET] + 1 - w.request[r, PROMPT]) % BLOCK


@njit(cache=True)
def _done(w, p, r, at):
    w.pod[p, FREE] += _blocks(w.request[r, PROMPT] + w.request[r, OUTPUT] - 1)
    _leave(w, p, r)
    w.request[r, STATE] = DONE
    w.moment[r, END] = at
    w.pod[p, OUTSTANDING] -= 1


@njit(cache=True)
def _preempt(w, p, r):
    if w.request[r, STATE] == DECODE:
        w.pod[p, FREE] += _blocks(w.request[r, PROMPT] + w.pod[p, STEP] - w.request[r, OFFSET] - 1)
        w.request[r, TOKENS] = w.pod[p, STEP] - w.request[r, OFFSET]
        w.pod[p, DECODING] -= 1
        w.due[p, _slot(w, r)] -= 1
    else:
        w.pod[p, FREE] += _blocks(w.request[r, PROMPT] + w.request[r, TOKENS])
        # The youngest running one is the last of those that prefill.
        q, last = w.lists[p, 4], NOBODY
        while q != r:
            last = q
            q = w.request[q, LINK]
        if last == NOBODY:
            w.lists[p, 4] = NOBODY
        else:
            w.request[last, LINK] = NOBODY
            w.lists[p, 5] = last
    _leave(w, p, r)
    w.request[r, STATE] = WAITING
    w.request[r, LINK] = w.lists[p, 2]
    if w.lists[p, 2] == NOBODY:
        w.lists[p, 3] = r
    w.lists[p, 2] = r
    w.waiting[p] += 1


@njit(cache=True)
def _admit(w, p):
    r = w.lists[p, 2]
    tokens = w.request[r, PROMPT] + w.request[r, TOKENS]
    blocks = _blocks(tokens)
    if w.pod[p, RUNNING] >= w.limits[p, 0] or blocks > w.pod[p, FREE]:
        return False
    _take(w, p, 2)
    w.waiting[p] -= 1
    w.pod[p, FREE] -= blocks
    w.request[r, BEFORE] = w.lists[p, 6]
    w.request[r, AFTER] = NOBODY
    if w.lists[p, 6] != NOBODY:
        w.request[w.lists[p, 6], AFTER] = r
    w.lists[p, 6] = r
    w.pod[p, RUNNING] += 1
    _append(w, p, 4, r)
    w.request[r, STATE] = PREFILL
    w.request[r, LEFT] = tokens
    return True


@njit(cache=True)
def _schedule(w, p, at):
    if w.pod[p, DECODING]:
        slot = w.pod[p, STEP] % BLOCK
        while w.due[p, slot] > w.pod[p, FREE]:
            _preempt(w, p, w.lists[p, 6])
        w.pod[p, FREE] -= w.due[p, slot]
    decoding = w.pod[p, DECODING]
    budget = w.limits[p, 2] - decoding
    n = 0
    had = w.pod[p, CHUNKS_NOW]
    r = w.lists[p, 4]
    while r != NOBODY and budget > 0 and n < CHUNKS:
        size = min(w.request[r, LEFT], budget)
        budget -= size
        w.chunk[p, n, 0] = r
        w.chunk[p, n, 1] = size
        n += 1
        r = w.request[r, LINK]
    while w.lists[p, 2] != NOBODY and budget > 0 and n < CHUNKS and _admit(w, p):
        r = w.lists[p, 5]
        size = min(w.request[r, LEFT], budget)
        budget -= size
        w.chunk[p, n, 0] = r
        w.chunk[p, n, 1] = size
        n += 1
    w.pod[p, CHUNKS_NOW] = n
    if not decoding and not n:
        w.pod[p, BUSY] = 0
        return
    if w.pod[p, BUSY] and not n and not had and w.pod[p, BATCH] == decoding:
        w.pod[p, COUNT] += 1
        return
    length = w.speed[p, 3] * (w.limits[p, 2] - decoding - budget)
    if decoding:
        length += w.speed[p, 0] + w.speed[p, 1] * decoding
    w.pod[p, BUSY] = 1
    w.clock[p, ANCHOR] = at
    w.pod[p, COUNT] = 1
    w.clock[p, LENGTH] = length
    w.pod[p, BATCH] = decoding


@njit(cache=True)
def _complete(w, p, at):
    if w.pod[p, DECODING]:
        w.pod[p, STEP] += 1
        while _earliest(w, p) <= w.pod[p, STEP]:
            r = w.heap[p, 0] & 0xFFFFFF
            _pop(w, p)
            w.pod[p, DECODING] -= 1
            w.due[p, _slot(w, r)] -= 1
            _done(w, p, r, at)
    for i in range(w.pod[p, CHUNKS_NOW]):
        r = w.chunk[p, i, 0]
        w.request[r, LEFT] -= w.chunk[p, i, 1]
        if w.request[r, LEFT] == 0:
            _take(w, p, 4)
            w.request[r, TOKENS] += 1
            if w.request[r, TOKENS] == 1:
                w.moment[r, FIRST] = at
            if w.request[r, TOKENS] == w.request[r, OUTPUT]:
                _done(w, p, r, at)
                continue
            w.request[r, STATE] = DECODE
            w.request[r, OFFSET] = w.pod[p, STEP] - w.request[r, TOKENS]
            w.request[r, FINISH] = w.request[r, OFFSET] + w.request[r, OUTPUT]
            _push(w, p, (w.request[r, FINISH] << 24) | r)
            w.pod[p, DECODING] += 1
            w.due[p, _slot(w, r)] += 1


@njit(cache=True)
def _enqueue(w, p, at):
    while w.lists[p, 0] != NOBODY and w.moment[w.lists[p, 0], ELIGIBLE] <= at:
        r = _take(w, p, 0)
        w.request[r, STATE] = WAITING
        w.waiting[p] += 1
        _append(w, p, 2, r)


@njit(cache=True)
def _leap(w, p, to):
    """Complete at once as many steps as are sure to be followed by an identical one."""
    decoding = w.pod[p, BATCH]
    if w.pod[p, CHUNKS_NOW] or w.lists[p, 2] != NOBODY or decoding != w.pod[p, DECODING]:
        return
    eligible = w.moment[w.lists[p, 0], ELIGIBLE] if w.lists[p, 0] != NOBODY else np.inf
    anchor, count, length = w.clock[p, ANCHOR], w.pod[p, COUNT], w.clock[p, LENGTH]
    steps = min(_earliest(w, p) - w.pod[p, STEP] - 1, np.int64((min(to, eligible) - anchor) / length) - count + 2)
    while steps > 1 and (
        anchor + (count + steps - 1) * length > to or anchor + (count + steps - 1) * length >= eligible
    ):
        steps -= 1
    if steps < 2:
        return
    rounds, rest = steps // BLOCK, steps % BLOCK
    blocks = rounds * decoding
    for i in range(1, rest + 1):
        blocks += w.due[p, (w.pod[p, STEP] + i) % BLOCK]
    if blocks > w.pod[p, FREE]:
        return
    w.pod[p, FREE] -= blocks
    w.pod[p, STEP] += steps
    w.pod[p, COUNT] += steps


@njit(cache=True)
def _advance(w, p, to):
    while True:
        if w.pod[p, BUSY]:
            _leap(w, p, to)
            at = w.clock[p, ANCHOR] + w.pod[p, COUNT] * w.clock[p, LENGTH]
            if at > to:
                break
            _complete(w, p, at)
        elif w.lists[p, 0] != NOBODY and w.moment[w.lists[p, 0], ELIGIBLE] <= to:
            at = w.moment[w.lists[p, 0], ELIGIBLE]
        else:
            break
        _enqueue(w, p, at)
        _schedule(w, p, at)
    _enqueue(w, p, to)
    w.clock[p, CLOCK] = to


@njit(cache=True)
def _wake(w, p):
    """No first token and no end comes before this time, as long as nothing is submitted."""
    if not w.pod[p, BUSY]:
        return w.moment[w.lists[p, 0], ELIGIBLE] if w.lists[p, 0] != NOBODY else np.inf
    if w.lists[p, 0] != NOBODY or w.lists[p, 2] != NOBODY or w.lists[p, 4] != NOBODY or not w.pod[p, DECODING]:
        return w.clock[p, ANCHOR] + w.pod[p, COUNT] * w.clock[p, LENGTH]
    return w.clock[p, ANCHOR] + (w.pod[p, COUNT] + _earliest(w, p) - w.pod[p, STEP] - 1) * w.clock[p, LENGTH]


@njit(cache=True)
def _submit(w, p, r, at):
    if w.request[r, PROMPT] + w.request[r, OUTPUT] > w.limits[p, 3]:
        w.request[r, STATE] = REFUSED
        return
    if w.clock[p, CLOCK] < at:  # otherwise a first request without delay would have a batch of its own
        _advance(w, p, at)
    w.moment[r, ELIGIBLE] = at + w.speed[p, 2]
    _append(w, p, 0, r)
    w.pod[p, OUTSTANDING] += 1


@njit(cache=True)
def _route(w, r, at):
    n = w.router[SERVING]
    w.router[TURN] += n > 1
    turn = w.router[TURN] % n
    best = w.order[turn]
    for i in range(1, n):
        p = w.order[(turn + i) % n]
        if w.pod[p, OUTSTANDING] < w.pod[best, OUTSTANDING]:
            best = p
    _submit(w, best, r, at)
    return best


@njit(cache=True)
def _end(w, p, at):
    w.pod[p, LIFE] = GONE
    w.clock[p, ENDED] = at


@njit(cache=True)
def _kill(w, p, at):
    _advance(w, p, at)
    r = w.lists[p, 6]
    while r != NOBODY:
        w.request[r, STATE] = BROKEN
        r = w.request[r, BEFORE]
    for which in (0, 2):
        r = w.lists[p, which]
        while r != NOBODY:
            w.request[r, STATE] = BROKEN
            r = w.request[r, LINK]
    w.pod[p, OUTSTANDING] = 0
    _end(w, p, at)


@njit(cache=True)
def run(w, pods, until):
    """Go on to ``until``; ``pods`` is how many there have been."""
    n = len(w.moment)
    wake = np.full(pods, np.inf)
    for p in range(pods):
        if w.pod[p, LIFE] != GONE:
            wake[p] = _due(w, p)
    soonest = wake.min() if pods else np.inf
    while True:
        r = w.router[NEXT]
        arrival = w.moment[r, AT] if r < n else np.inf
        now = min(min(arrival, soonest), until)
        if soonest <= now:
            soonest = np.inf
            for p in range(pods):
                if wake[p] <= now:
                    _happen(w, p, now, wake)
                    wake[p] = _due(w, p)
            for p in range(pods):
                soonest = min(soonest, wake[p])
            continue
        if now >= until:
            break
        w.router[NEXT] += 1
        if w.router[SERVING]:
            p = _route(w, r, now)
            wake[p] = _due(w, p)
            soonest = min(soonest, wake[p])
        else:
            w.queue[w.router[TAIL]] = r
            w.router[TAIL] += 1
    while w.router[HEAD] < w.router[TAIL] and w.moment[w.queue[w.router[HEAD]], AT] + w.queue_limit[0] <= until:
        w.request[w.queue[w.router[HEAD]], STATE] = REFUSED
        w.router[HEAD] += 1
    for p in range(pods):
        if w.pod[p, LIFE] == READY or w.pod[p, LIFE] == DRAINING:
            _advance(w, p, until)
            if w.pod[p, LIFE] == DRAINING and not w.pod[p, OUTSTANDING]:
                _end(w, p, until)


@njit(cache=True)
def _due(w, p):
    if w.pod[p, LIFE] == GONE:
        return np.inf
    if w.pod[p, LIFE] == STARTING:
        return w.clock[p, READY_AT]
    if w.pod[p, LIFE] == DRAINING:
        return min(_wake(w, p), w.clock[p, KILL_AT])
    return _wake(w, p)


@njit(cache=True)
def _happen(w, p, now, wake):
    if w.pod[p, LIFE] == STARTING:
        w.pod[p, LIFE] = READY
        w.clock[p, CLOCK] = now
        w.order[w.router[SERVING]] = p
        w.router[SERVING] += 1
        while w.router[HEAD] < w.router[TAIL]:
            r = w.queue[w.router[HEAD]]
            w.router[HEAD] += 1
            if w.moment[r, AT] + w.queue_limit[0] <= now:
                w.request[r, STATE] = REFUSED
            else:
                q = _route(w, r, now)
                wake[q] = _due(w, q)
        return
    _advance(w, p, now)
    if w.pod[p, LIFE] == DRAINING:
        if not w.pod[p, OUTSTANDING]:
            _end(w, p, now)
        elif w.clock[p, KILL_AT] <= now:
            _kill(w, p, now)


@njit(cache=True)
def remove(w, p, now, grace):
    """Take a pod away: one that starts is gone at once, a ready one finishes what it has."""
    if w.pod[p, LIFE] == STARTING:
        _end(w, p, now)
        return
    n = w.router[SERVING]
    for i in range(n):
        if w.order[i] == p:
            for j in range(i, n - 1):
                w.order[j] = w.order[j + 1]
            break
    w.router[SERVING] = n - 1
    _advance(w, p, now)
    if w.pod[p, OUTSTANDING]:
        w.pod[p, LIFE] = DRAINING
        w.clock[p, KILL_AT] = now + grace
    else:
        _end(w, p, now)
