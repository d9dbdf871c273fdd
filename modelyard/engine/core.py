"""The simulated engine itself: continuous batching in virtual time, without a clock, I/O or threads.

Times are virtual seconds from the engine's start; ``advance`` moves them forward, as a server does with the wall clock
and a simulation with its own.

**The step.** As in real engines, work happens in iterations. In one iteration every decoding request yields one token,
and the rest of the token budget (``max_num_batched_tokens``) goes to chunks of prompts: first those already begun,
then waiting requests in order of arrival, while the batch has a place and the KV cache has blocks for the whole
prompt. An iteration with *d* decoding sequences and *p* prompt tokens lasts

    (α + β·d  if d > 0)  +  δ·p

**Agreement with the reference model** (ITL(n) = α + β·n; TTFT(n) = γ + δ·tokens·n; service time s(n) = TTFT(n) + (out
− 1)·ITL(n)). γ is a request's own delay in the front end before it joins the queue; it takes no engine time. So one
request alone has exactly TTFT = γ + δ·tokens and ITL = α + β; n equal requests at once have exactly TTFT = γ +
δ·tokens·n when their prompts fit one iteration, and decode at α + β·n. In steady state with n in service a request
lives through its own prompt and on average those of the n − 1 others, δ·tokens·n in all, which gives the reference's
s(n) and throughput; as on real hardware, the others' part shows as longer gaps between tokens (the reference books all
of it under TTFT).

**The KV cache** has blocks of ``block_size`` tokens. A prompt takes its blocks when admitted. A decode step whose
request has filled its last block takes another; when none is free the youngest running request is preempted: it loses
its blocks, goes back to the *front* of the queue, and later computes prompt and generated tokens again. What it left
never suffices for itself, so a step that preempts admits nothing.

Where ``prefix_segment`` switches it on, a prompt that begins like one before shares its blocks (``BlockPool``) and
computes only the rest.

**Cost.** A decode step is O(1) whatever the batch: tokens are counted by one step counter, block needs by the
residue of the position, ends by a heap. Runs of identical steps are taken at once.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Hashable, Iterable, Sequence

from modelyard.engine.blocks import BlockPool
from modelyard.engine.config import EngineConfig
from modelyard.engine.request import Event, EventKind, Request, RequestState
from modelyard.engine.stats import EngineStats


class Rejected(Exception):
    """The engine does not take the request. ``retryable`` when the queue is full, not when it can never fit."""

    def __init__(self, message: str, *, retryable: bool) -> None:
        super().__init__(message)
        self.retryable = retryable


class EngineCore:
    """One engine in virtual time. Equal calls with an equal ``seed`` give equal results.

    >>> core = EngineCore(EngineConfig())
    >>> request = core.submit(prompt_tokens=100, output_tokens=10)
    >>> events = core.advance(1.0)
    """

    def __init__(self, config: EngineConfig, *, stats: EngineStats | None = None, seed: int = 0) -> None:
        self.config = config
        self.stats = stats if stats is not None else EngineStats()
        self.clock = 0.0
        self._alpha = config.alpha / 1000
        self._beta = config.beta / 1000
        self._gamma = config.gamma / 1000
        self._delta = config.delta / 1000
        self._block = config.block_size
        self._pool = BlockPool(config.num_blocks, config.prefix_segment // config.block_size)
        self._random = random.Random(seed)
        self._submitted = 0
        self._events: list[Event] = []
        # Requests: arriving (in the front end), waiting, running. Running keeps the order of admission; the prefilling
        # ones among them are also in _prefilling, in the same order.
        self._arriving: deque[Request] = deque()
        self._waiting: deque[Request] = deque()
        self._running: dict[int, Request] = {}
        self._prefilling: deque[Request] = deque()
        self._decoding = 0
        # Decode steps done so far; ends as (step, request number), stale entries included; and, for each residue of
        # the step counter, how many decoding sequences need a new block in such steps.
        self._step = 0
        self._decoded = 0
        self._ends: list[tuple[int, int]] = []
        self._due = [0] * self._block
        # The iteration in progress ends at _anchor + _count * _duration: counting from an anchor keeps times exactly
        # equal however finely a caller advances.
        self._busy = False
        self._anchor = 0.0
        self._count = 0
        self._duration = 0.0
        self._batch = 0
        self._chunks: list[tuple[Request, int]] = []

    @property
    def num_running(self) -> int:
        """Sequences in the batch, prefilling or decoding."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Requests in the queue, preempted ones included."""
        return len(self._waiting)

    @property
    def kv_used_blocks(self) -> int:
        """KV cache blocks held by running sequences."""
        return self.config.num_blocks - self._pool.free

    @property
    def kv_usage(self) -> float:
        """Share of the KV cache in use, 0 to 1."""
        return self.kv_used_blocks / self.config.num_blocks

    @property
    def running(self) -> Iterable[Request]:
        """The running sequences in order of admission. Do not call the engine while iterating."""
        return self._running.values()

    @property
    def waiting(self) -> Iterable[Request]:
        """The queue, head first. Do not call the engine while iterating."""
        return iter(self._waiting)

    def generated(self, request: Request) -> int:
        """Tokens that ``request`` has generated by now."""
        return self._step - request.offset if request.state is RequestState.DECODE else request.tokens

    def held_blocks(self, request: Request) -> int:
        """KV cache blocks that ``request`` holds now, the one for the token in progress included."""
        if request.state is RequestState.PREFILL or request.state is RequestState.DECODE:
            return self._blocks(request.prompt_tokens + self.generated(request))
        return 0

    def computed(self) -> tuple[float, float, float]:
        """Decode steps, tokens decoded and prompt tokens computed so far; of the step in progress the share done.

        Without jitter the clock is the idle time + alpha * steps + beta * decoded + delta * prompt tokens.
        """
        steps, decoded = float(self._step), float(self._decoded)
        prompts = self.stats.iteration_tokens.total - self._decoded
        if self._busy and self._duration > 0:
            done = 1 - (self._step_end() - self.clock) / self._duration
            steps += done * (self._batch > 0)
            decoded += done * self._batch
            prompts += done * sum(chunk for _, chunk in self._chunks)
        return steps, decoded, prompts

    def submit(
        self,
        prompt_tokens: int,
        output_tokens: int,
        *,
        max_tokens: int | None = None,
        reason: str = "length",
        tag: object = None,
        prefix: Sequence[Hashable] = (),
    ) -> Request:
        """Hand in a request that arrives now (at ``clock``).

        It will generate exactly ``output_tokens`` and then finish with ``reason``. ``max_tokens`` is what the client
        asked for (for the metrics only). ``prefix`` names the prompt's segments from the first on, a name standing for
        the segment and all before it; only whole ones count. Raises ``Rejected`` when it can never fit or the queue
        is full.
        """
        if prompt_tokens < 1 or output_tokens < 1:
            raise ValueError(f"prompt and output need at least one token each, not {prompt_tokens}+{output_tokens}")
        if prompt_tokens + output_tokens > self.config.context_limit:
            raise Rejected(
                f"the maximum context length is {self.config.context_limit} tokens, but the request needs "
                f"{prompt_tokens + output_tokens} ({prompt_tokens} in the prompt, {output_tokens} to generate)",
                retryable=False,
            )
        limit = self.config.max_waiting
        if limit is not None and self._queue_ahead() >= limit:
            raise Rejected(f"the waiting queue is full ({limit} requests)", retryable=True)
        asked = output_tokens if max_tokens is None else max_tokens
        arrived, eligible = self.clock, self.clock + self._gamma
        request = Request(self._submitted, prompt_tokens, output_tokens, asked, reason, tag, arrived, eligible)
        if self.config.prefix_segment:
            request.prefix = prefix[: prompt_tokens // self.config.prefix_segment]
        self._submitted += 1
        self._arriving.append(request)
        return request

    def cancel(self, request: Request) -> bool:
        """Abort an unfinished request now and free what it holds; false when it had already ended.

        The iteration in progress keeps its length: the hardware is already at it.
        """
        state = request.state
        if state is RequestState.ARRIVING:
            self._arriving.remove(request)
        elif state is RequestState.WAITING:
            self._waiting.remove(request)
        elif state is RequestState.PREFILL or state is RequestState.DECODE:
            self._pool.release(request, self.held_blocks(request))
            if state is RequestState.PREFILL:
                self._prefilling.remove(request)
            else:
                self._stop_decoding(request)
            del self._running[request.number]
        else:
            return False
        request.state = RequestState.ABORTED
        request.finished_at = self.clock
        self.stats.finished["abort"] += 1
        return True

    def next_event_time(self) -> float:
        """When something next happens: the end of the iteration in progress, or a request's entry; ``inf`` if idle."""
        if self._busy:
            return self._step_end()
        return self._arriving[0].eligible_at if self._arriving else math.inf

    def next_result_time(self) -> float:
        """No first token and no end of a request will come before this time, if nothing is submitted or cancelled.

        ``inf`` if idle. With ``jitter`` it is an estimate.
        """
        if not self._busy or self._arriving or self._waiting or self._prefilling or not self._decoding:
            return self.next_event_time()
        return self._anchor + (self._count + self._earliest_end() - self._step - 1) * self._duration

    def advance(self, to: float) -> list[Event]:
        """Run until virtual time ``to`` and return what happened, in order. Time never goes backwards."""
        if not self.clock <= to < math.inf:
            raise ValueError(f"cannot advance to {to}: the engine's clock is at {self.clock}")
        while True:
            if self._busy:
                self._take_equal_steps(to)
                at = self._step_end()
                if at > to:
                    break
                self._complete_step(at)
            elif self._arriving and self._arriving[0].eligible_at <= to:
                at = self._arriving[0].eligible_at
            else:
                break
            self._enqueue_arrived(at)
            self._schedule_step(at)
        self._enqueue_arrived(to)
        self.clock = to
        events = self._events
        if events:
            self._events = []
        return events

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._block)

    def _step_end(self) -> float:
        return self._anchor + self._count * self._duration

    def _queue_ahead(self) -> int:
        """How many requests would queue before one that arrived now; negative while the batch has places."""
        if self._waiting:
            return len(self._waiting) + len(self._arriving)
        return len(self._running) + len(self._arriving) - self.config.max_num_seqs

    def _enqueue_arrived(self, at: float) -> None:
        arriving = self._arriving
        while arriving and arriving[0].eligible_at <= at:
            request = arriving.popleft()
            request.state = RequestState.WAITING
            self._waiting.append(request)

    def _schedule_step(self, at: float) -> None:
        if self._decoding:
            self._allocate_decode_blocks(at)
        decoding = self._decoding
        budget = self.config.max_num_batched_tokens - decoding
        chunks: list[tuple[Request, int]] = []
        for request in self._prefilling:
            if budget <= 0:
                break
            chunk = min(request.to_prefill, budget)
            budget -= chunk
            chunks.append((request, chunk))
        while self._waiting and budget > 0 and self._admit(at):
            request = self._prefilling[-1]
            chunk = min(request.to_prefill, budget)
            budget -= chunk
            chunks.append((request, chunk))
        if not decoding and not chunks:
            self._busy = False
            return
        prompt_tokens = self.config.max_num_batched_tokens - decoding - budget
        duration = self._alpha + self._beta * decoding if decoding else 0.0
        duration += self._delta * prompt_tokens
        if self.config.jitter:
            duration *= min(1.7, max(0.3, self._random.gauss(1.0, self.config.jitter)))
        elif self._busy and not chunks and not self._chunks and self._batch == decoding:
            self._count += 1
            return
        self._busy = True
        self._anchor = at
        self._count = 1
        self._duration = duration
        self._batch = decoding
        self._chunks = chunks

    def _allocate_decode_blocks(self, at: float) -> None:
        due = self._due
        slot = self._step % self._block
        while due[slot] > self._pool.free:
            self._preempt(next(reversed(self._running.values())), at)
        self._pool.take(due[slot])

    def _preempt(self, request: Request, at: float) -> None:
        if request.state is RequestState.DECODE:
            # Called between steps: the block for the next token has not been taken yet.
            self._pool.release(request, self._blocks(request.prompt_tokens + self.generated(request) - 1))
            self._stop_decoding(request)
            request.last_token_at = at
        else:
            self._pool.release(request, self._blocks(request.prompt_tokens + request.tokens))
            self._prefilling.remove(request)
        del self._running[request.number]
        request.state = RequestState.WAITING
        request.preemptions += 1
        self._waiting.appendleft(request)
        self.stats.preemptions_total += 1
        self._events.append(Event(EventKind.PREEMPTED, request, at))

    def _admit(self, at: float) -> bool:
        request = self._waiting[0]
        tokens = request.prompt_tokens + request.tokens
        if len(self._running) >= self.config.max_num_seqs:
            return False
        found = self._pool.cached(request)
        if not self._pool.admit(request, found, self._blocks(tokens)):
            return False
        self._waiting.popleft()
        self._running[request.number] = request
        self._prefilling.append(request)
        request.state = RequestState.PREFILL
        if request.preemptions == 0 or self.config.prefix_segment:
            cached = int(request.prompt_tokens * self.config.prefix_hit_ratio) // self._block * self._block
            # The last prompt token is always computed: its output is the first generated token.
            request.cached_tokens = min(len(found) * self.config.prefix_segment or cached, request.prompt_tokens - 1)
        if request.preemptions == 0:
            request.scheduled_at = at
            self.stats.prefix_queries_total += request.prompt_tokens
            self.stats.prefix_hits_total += request.cached_tokens
        request.to_prefill = tokens - request.cached_tokens
        return True

    def _complete_step(self, at: float) -> None:
        decoding = self._decoding
        stats = self.stats
        tokens = decoding
        if decoding:
            self._step += 1
            self._decoded += decoding
            stats.generation_tokens_total += decoding
            stats.itl.observe(self._duration, decoding)
            self._finish_due(at)
        for request, chunk in self._chunks:
            tokens += chunk
            # Cancelled while the iteration ran: computed in vain.
            if request.state is RequestState.PREFILL:
                request.to_prefill -= chunk
                if request.to_prefill == 0:
                    self._prefilling.popleft()
                    self._first_token(request, at)
        stats.iteration_tokens.observe(tokens)

    def _finish_due(self, at: float) -> None:
        ends = self._ends
        step = self._step
        while ends and ends[0][0] <= step:
            request = self._running.get(heapq.heappop(ends)[1])
            # Entries of preempted or cancelled sequences are stale.
            if request is not None and request.state is RequestState.DECODE and request.finish_step == step:
                self._stop_decoding(request)
                self._finish(request, at)

    def _first_token(self, request: Request, at: float) -> None:
        """A prefill is complete and yields a token: the first one, or the next one after a preemption."""
        stats = self.stats
        self._pool.keep(request)
        request.tokens += 1
        stats.generation_tokens_total += 1
        if request.tokens == 1:
            request.first_token_at = at
            stats.prompt_tokens_total += request.prompt_tokens
            stats.ttft.observe(at - request.arrived_at)
            self._events.append(Event(EventKind.FIRST_TOKEN, request, at))
        else:
            stats.itl.observe(at - request.last_token_at)
        if request.tokens == request.output_tokens:
            self._finish(request, at)
            return
        request.state = RequestState.DECODE
        request.offset = self._step - request.tokens
        request.finish_step = request.offset + request.output_tokens
        heapq.heappush(self._ends, (request.finish_step, request.number))
        self._decoding += 1
        self._due[self._slot(request)] += 1

    def _slot(self, request: Request) -> int:
        # A step stores the token generated last; it needs a new block when prompt + generated - 1 fill theirs exactly.
        return (request.offset + 1 - request.prompt_tokens) % self._block

    def _stop_decoding(self, request: Request) -> None:
        request.tokens = self._step - request.offset
        self._decoding -= 1
        self._due[self._slot(request)] -= 1

    def _finish(self, request: Request, at: float) -> None:
        # The last token generated is never stored.
        self._pool.release(request, self._blocks(request.prompt_tokens + request.output_tokens - 1))
        del self._running[request.number]
        request.state = RequestState.FINISHED
        request.finished_at = at
        self.stats.record_finish(request, request.reason)
        self._events.append(Event(EventKind.FINISHED, request, at))

    def _earliest_end(self) -> int:
        """The step in which the next decoding request finishes. Call only while one is decoding."""
        ends = self._ends
        while True:
            step, number = ends[0]
            request = self._running.get(number)
            if request is not None and request.finish_step == step and request.state is RequestState.DECODE:
                return step
            heapq.heappop(ends)

    def _take_equal_steps(self, to: float) -> None:
        """Complete at once as many steps as are sure to be followed by an identical one."""
        decoding = self._batch
        if self._chunks or self._waiting or self.config.jitter or decoding != self._decoding:
            return
        eligible = self._arriving[0].eligible_at if self._arriving else math.inf
        anchor, count, duration = self._anchor, self._count, self._duration
        steps = int(min(self._earliest_end() - self._step - 1, (min(to, eligible) - anchor) / duration - count + 2))
        # Division rounds: settle the last one by the same sum that _step_end uses.
        while steps > 1 and ((last := anchor + (count + steps - 1) * duration) > to or last >= eligible):
            steps -= 1
        if steps < 2:
            return
        due, block, step = self._due, self._block, self._step
        rounds, rest = divmod(steps, block)
        blocks = rounds * decoding + sum(due[(step + i) % block] for i in range(1, rest + 1))
        if blocks > self._pool.free:
            return
        self._pool.take(blocks)
        self._step += steps
        self._decoded += steps * decoding
        self._count += steps
        self.stats.generation_tokens_total += steps * decoding
        self.stats.itl.observe(duration, steps * decoding)
        self.stats.iteration_tokens.observe(decoding, steps)
