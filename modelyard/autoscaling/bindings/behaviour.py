"""How far a recommendation is followed now: stabilization, rate limits, panic, bounds.

Source: Kthena autoscaler reference, "Corrected replicas (behaviour)" and "Panic".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from modelyard.autoscaling.bindings import windows
from modelyard.autoscaling.decision import Step
from modelyard.autoscaling.memory.bindings import BindingMemory, History
from modelyard.autoscaling.view import Behaviour, DirectionLimits


@dataclass(frozen=True, slots=True)
class Correction:
    """The replicas to have now, and what to remember: ``memory`` with ``remembered`` applied once all is decided.

    ``noted`` is the recommendation to record. ``blocked`` says in a few words what keeps the replicas from the
    recommendation and until when, empty when nothing does; ``blocked_by`` is the code for it: ``Stabilizing``,
    ``RateLimited`` or ``Panicking``.
    """

    replicas: int
    panic: bool
    memory: BindingMemory
    noted: int
    steps: tuple[Step, ...] = ()
    blocked: str = ""
    blocked_by: str = ""


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
    """Return the replicas a recommendation leads to now.

    ``now`` is epoch seconds, ``tick`` the seconds between two decisions.
    """
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
        run.step("clamp", clamped, f"bounds are {minimum} to {maximum}")
        run.blocked = run.blocked_by = ""
    if until != memory.panic_until:
        memory = memory.model_copy(update={"panic_until": until})
    return Correction(clamped, panic, memory, run.noted(clamped), tuple(run.steps), run.blocked, run.blocked_by)


def remembered(correction: Correction, replicas: int, now: float, tick: float) -> BindingMemory:
    """The memory after a correction was followed: ``replicas`` is what came of it in the end (wake-up, last instance).

    Were it the corrected number that is recorded, a limit would count from replicas that there never were.
    """
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
        self,
        behaviour: Behaviour,
        recommended: int,
        current: int,
        memory: BindingMemory,
        now: float,
        tick: float,
    ) -> None:
        self.behaviour = behaviour
        self.recommended = recommended
        self.current = current
        self.memory = memory
        self.now = now
        self.tick = tick
        self.replicas = recommended
        self.steps: list[Step] = []
        self.blocked = ""
        self.blocked_by = ""

    @classmethod
    def started(cls, memory: BindingMemory, current: int, now: float) -> BindingMemory:
        """Return the memory with windows that start with the current replicas in force.

        So a limit holds from the first step on.
        """
        if memory.recommended.newest is not None:
            return memory
        fresh = windows.seeded(current, now)
        return memory.model_copy(update={"recommended": fresh, "corrected": fresh})

    def noted(self, corrected: int) -> int:
        """Return what is recorded for stabilization."""
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
        """Return whether the recommendation starts a panic."""
        # At zero any recommendation reaches the threshold, also the one to stay there.
        return self.reaches_threshold() and self.recommended > self.current

    def reaches_threshold(self) -> bool:
        """Return whether the recommendation reaches the threshold of panic."""
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

    def step(self, stage: str, after: int, detail: str) -> None:
        """Note a step that leads to other replicas."""
        self.steps.append(Step(stage, self.replicas, after, detail))
        self.replicas = after

    def block(self, code: str, text: str) -> None:
        """Note what keeps the replicas from the recommendation."""
        self.blocked_by, self.blocked = code, text

    def panic(self, until: float) -> None:
        """Follow the recommendation in panic."""
        panic, line = self.behaviour.panic, self.memory.corrected
        base = windows.lowest_line(line, panic.period, self.now, self.tick, self.current)
        text = f"panic until {clock(until)}"
        limit = None if base is None else self.panic_limit(base)
        if limit is not None and limit < self.replicas:
            text += f", at most {panic.percent} % above {base} within {panic.period:g} s"
            self.block("RateLimited", text)
            self.step("panic", limit, text)
        if self.replicas < self.current:
            self.block("Panicking", f"{text}: no scale-down before that")
            self.step("panic", self.current, f"{text}: no scale-down")
        elif not self.steps:
            self.step("panic", self.replicas, text)

    def down(self) -> None:
        """Follow a recommendation of fewer replicas."""
        rules, history = self.behaviour.down, self.memory.recommended
        highest = windows.highest_record(history, rules.window, self.now, self.tick)
        if highest is not None and highest > self.replicas:
            until = windows.held_until(history, rules.window, self.now, self.tick, above=self.replicas)
            after = min(highest, self.current)
            text = f"the highest recommendation of the last {rules.window:g} s is {highest}"
            if until is not None:
                text += f"; {self.replicas} is possible after {clock(until)}"
            self.step("stabilization", after, text)
            self.block("Stabilizing", text)
        base = self.shrinking_base(rules.period)
        if base is not None:
            self._limit(base, rules, self._bound(rules, base, -1), down=True)
        self.replicas = min(self.replicas, self.current)

    def up(self) -> None:
        """Follow a recommendation of more replicas."""
        rules, history = self.behaviour.up, self.memory.recommended
        lowest = windows.lowest_record(history, rules.window, self.now, self.tick)
        if lowest is not None and lowest < self.replicas:
            text = f"the lowest recommendation of the last {rules.window:g} s is {lowest}"
            self.step("stabilization", max(lowest, self.current), text)
            self.block("Stabilizing", text)
        base = windows.lowest_line(self.memory.corrected, rules.period, self.now, self.tick, self.current)
        if base is not None:
            self._limit(base, rules, self.growth_limit(base), down=False)
        self.replicas = max(self.replicas, self.current)

    @staticmethod
    def _bound(rules: DirectionLimits, base: int, sign: int) -> int | None:
        """How far the two limits allow to go from ``base``; ``None`` for a way to join them that is not known."""
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
        which = "larger" if rules.select == "Or" else "smaller"
        text = (
            f"at most the {which} of {rules.instances} or {rules.percent} % {'less' if down else 'more'} than {base} "
            f"within {rules.period:g} s"
        )
        freed = _freed(self.memory.corrected, base, rules.period, self.now)
        if freed is not None:
            text += f"; more is possible after {clock(freed)}"
        self.step("rate limit", after, text)
        self.block("RateLimited", text)


def _freed(history: History, base: int, period: float, now: float) -> float | None:
    """When ``base`` leaves the window of a rate limit; ``None`` when it still holds and so does not."""
    times: Sequence[float] = [until + period for until, value in history.past if value == base]
    return max((time for time in times if time >= now), default=None)
