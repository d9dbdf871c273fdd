"""Stabilization, rate limits, panic, bounds. Source: Kthena autoscaler reference, "Corrected replicas", "Panic"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from modelyard.autoscaling.bindings import windows
from modelyard.autoscaling.decisions import Explanation, Reason, Step
from modelyard.autoscaling.fleet import Behaviour, DirectionLimits
from modelyard.autoscaling.memory import BindingMemory, History


@dataclass(frozen=True, slots=True)
class Correction:
    """Replicas to have now; ``memory``, to which ``remembered`` applies once all is decided; ``noted`` to record.

    ``blocked`` is what keeps the replicas from the recommendation and until when; ``None``: nothing.
    """

    replicas: int
    panic: bool
    memory: BindingMemory
    noted: int
    steps: tuple[Step, ...] = ()
    blocked: Explanation | None = None


def correct(
    behaviour: Behaviour,
    recommended: int,
    current: int,
    minimum: int,
    maximum: int,
    memory: BindingMemory,
    now: float,
    tick: float,
    *,
    corrector: type[Corrector] | None = None,
) -> Correction:
    """Return the replicas a recommendation leads to now (epoch seconds); decisions are ``tick`` seconds apart."""
    memory = (corrector or Corrector).started(memory, current, now)
    run = (corrector or Corrector)(behaviour, recommended, current, memory, now, tick)
    until = run.panic_until()
    panic = until is not None
    if panic:
        run.panic(until or now)
    elif recommended < current:
        run.down()
    elif recommended > current:
        run.up()
    replicas = run.replicas
    clamped = min(max(replicas, minimum), maximum)
    if clamped != replicas:
        run.step("clamp", clamped, Explanation(Reason.CLAMPED, minimum=minimum, maximum=maximum))
        run.blocked = None
    if until != memory.panic_until:
        memory = memory.model_copy(update={"panic_until": until})
    return Correction(clamped, panic, memory, run.noted(clamped), tuple(run.steps), run.blocked)


def remembered(correction: Correction, replicas: int, now: float, tick: float) -> BindingMemory:
    """The memory after ``replicas`` were decided in the end: limits must not count from replicas that never existed."""
    memory, changes = correction.memory, dict[str, object]()
    noted = windows.record(memory.recommended, correction.noted, now, tick, line=False)
    corrected = windows.record(memory.corrected, replicas, now, tick, line=True)
    if noted is not memory.recommended:
        changes["recommended"] = noted
    if corrected is not memory.corrected:
        changes["corrected"] = corrected
    return memory.model_copy(update=changes) if changes else memory


def clock(time: float) -> str:
    """A moment in UTC, for messages."""
    return datetime.fromtimestamp(int(time), UTC).strftime("%H:%M:%SZ")


class Corrector:
    """One correction in the making. The documented algorithm overrides what it does otherwise."""

    def __init__(
        self, behaviour: Behaviour, recommended: int, current: int, memory: BindingMemory, now: float, tick: float
    ) -> None:
        self.behaviour = behaviour
        self.recommended = recommended
        self.current = current
        self.memory = memory
        self.now = now
        self.tick = tick
        self.replicas = recommended
        self.steps: list[Step] = []
        self.blocked: Explanation | None = None

    @classmethod
    def started(cls, memory: BindingMemory, current: int, now: float) -> BindingMemory:
        """Return the memory with windows that start at ``current``, so that limits hold from the first step on."""
        if memory.recommended.newest is not None:
            return memory
        fresh = windows.seeded(current, now)
        return memory.model_copy(update={"recommended": fresh, "corrected": fresh})

    def noted(self, corrected: int) -> int:
        return self.recommended

    def panic_until(self) -> float | None:
        """Return until when panic lasts, this moment included; ``None`` when there is none now."""
        panic = self.behaviour.panic
        if panic.hold <= 0:
            return None
        if self.panics():
            return self.now + panic.hold
        until = self.memory.panic_until
        # No longer than the hold that is in force: it may have been shortened, and the clock may have been set back.
        return min(until, self.now + panic.hold) if until is not None and self.now <= until else None

    def panics(self) -> bool:
        # At zero any recommendation reaches the threshold, also the one to stay there.
        return self.reaches_threshold() and self.recommended > self.current

    def reaches_threshold(self) -> bool:
        threshold = self.behaviour.panic.threshold
        return threshold is not None and self.recommended * 100 >= self.current * threshold

    def panic_limit(self, base: int) -> int | None:
        """Return the most replicas in panic, from ``base``; ``None`` for no limit. The first instance may start."""
        return base + base * self.behaviour.panic.percent // 100 if base > 0 else None

    def shrinking_base(self, period: float) -> int | None:
        """Return the replicas that a scale-down is limited from: the highest of its period."""
        return windows.highest_line(self.memory.corrected, period, self.now, self.tick, self.current)

    def growth_limit(self, base: int) -> int | None:
        """Return the most replicas a scale-up may lead to. The first instance may start."""
        limit = self._bound(self.behaviour.up, base, 1)
        return max(limit, 1) if limit is not None and self.current == 0 else limit

    def step(self, stage: str, after: int, why: Explanation) -> None:
        self.steps.append(Step(stage, self.replicas, after, str(why)))
        self.replicas = after

    def panic(self, until: float) -> None:
        panic, line = self.behaviour.panic, self.memory.corrected
        base = windows.lowest_line(line, panic.period, self.now, self.tick, self.current)
        why = Explanation(Reason.PANIC, until=clock(until))
        limit = None if base is None else self.panic_limit(base)
        if limit is not None and limit < self.replicas:
            why = Explanation(Reason.PANIC_LIMITED, panic=why, percent=panic.percent, base=base, period=panic.period)
            self.blocked = why
            self.step("panic", limit, why)
        if self.replicas < self.current:
            self.blocked = Explanation(Reason.PANICKING, panic=why)
            self.step("panic", self.current, Explanation(Reason.PANIC_STAYS, panic=why))
        elif not self.steps:
            self.step("panic", self.replicas, why)

    def down(self) -> None:
        rules, history = self.behaviour.down, self.memory.recommended
        highest = windows.highest_record(history, rules.window, self.now, self.tick)
        if highest is not None and highest > self.replicas:
            until = windows.held_until(history, rules.window, self.now, self.tick, above=self.replicas)
            after = min(highest, self.current)
            then = "" if until is None else _possible(self.replicas, until)
            why = Explanation(Reason.STABILIZED_DOWN, window=rules.window, highest=highest, then=then)
            self.blocked = why
            self.step("stabilization", after, why)
        base = self.shrinking_base(rules.period)
        if base is not None:
            self._limit(base, rules, self._bound(rules, base, -1), down=True)
        self.replicas = min(self.replicas, self.current)

    def up(self) -> None:
        rules, history = self.behaviour.up, self.memory.recommended
        lowest = windows.lowest_record(history, rules.window, self.now, self.tick)
        if lowest is not None and lowest < self.replicas:
            self.blocked = Explanation(Reason.STABILIZED_UP, window=rules.window, lowest=lowest)
            self.step("stabilization", max(lowest, self.current), self.blocked)
        base = windows.lowest_line(self.memory.corrected, rules.period, self.now, self.tick, self.current)
        if base is not None:
            self._limit(base, rules, self.growth_limit(base), down=False)
        self.replicas = max(self.replicas, self.current)

    @staticmethod
    def _bound(rules: DirectionLimits, base: int, sign: int) -> int | None:
        """Limit from ``base``; ``None`` for an unknown way to join the two limits."""
        by_instances = base + sign * rules.instances
        by_percent = base + sign * (base * rules.percent // 100)
        widest = max if sign > 0 else min
        narrowest = min if sign > 0 else max
        join = {"Or": widest, "And": narrowest}.get(rules.select)
        return None if join is None else join(by_instances, by_percent)

    def _limit(self, base: int, rules: DirectionLimits, limit: int | None, *, down: bool) -> None:
        if limit is None or (self.replicas >= limit if down else self.replicas <= limit):
            return
        after = min(limit, self.current) if down else max(limit, self.current)
        freed = _freed(self.memory.corrected, base, rules.period, self.now)
        self.blocked = Explanation(
            Reason.RATE_LIMITED,
            which="larger" if rules.select == "Or" else "smaller",
            instances=rules.instances,
            percent=rules.percent,
            direction="less" if down else "more",
            base=base,
            period=rules.period,
            then="" if freed is None else _possible("more", freed),
        )
        self.step("rate limit", after, self.blocked)


def _possible(replicas: object, time: float) -> Explanation:
    return Explanation(Reason.POSSIBLE_AFTER, replicas=replicas, time=clock(time))


def _freed(history: History, base: int, period: float, now: float) -> float | None:
    """When ``base`` leaves the window of a rate limit; ``None`` when it still holds and so does not."""
    times: Sequence[float] = [until + period for until, value in history.past if value == base]
    return max((time for time in times if time >= now), default=None)
