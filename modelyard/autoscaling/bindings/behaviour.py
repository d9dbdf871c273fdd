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
from modelyard.autoscaling.rules import RULES, Rules
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
    rules: Rules = RULES,
) -> Correction:
    """The replicas a recommendation leads to now.

    ``now`` is epoch seconds, ``tick`` the seconds between two decisions. Fresh windows start with the current replicas
    in force, so that a limit holds from the first step on, unless the ``rules`` say otherwise.
    """
    if rules.seeds_windows and memory.recommended.newest is None:
        memory = memory.model_copy(
            update={"recommended": windows.seeded(current, now), "corrected": windows.seeded(current, now)}
        )
    run = _Run(behaviour, recommended, current, memory, now, tick, rules)
    until = _panic_until(run)
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
    noted = recommended if rules.notes_recommended else clamped
    return Correction(clamped, panic, memory, noted, tuple(run.steps), run.blocked, run.blocked_by)


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


def _panic_until(run: _Run) -> float | None:
    """Until when panic lasts, this moment included; ``None`` when there is none now."""
    panic = run.behaviour.panic
    if panic.hold <= 0:
        return None
    reached = panic.threshold is not None and run.recommended * 100 >= run.current * panic.threshold
    # At zero any recommendation reaches the threshold, also the one to stay there.
    if reached and (run.recommended > run.current or not run.rules.leaves_zero):
        return run.now + panic.hold
    until = run.memory.panic_until
    # No longer than the hold that is in force: it may have been shortened, and the clock may have been set back.
    return min(until, run.now + panic.hold) if until is not None and run.now <= until else None


class _Run:
    """One correction in the making."""

    def __init__(
        self,
        behaviour: Behaviour,
        recommended: int,
        current: int,
        memory: BindingMemory,
        now: float,
        tick: float,
        rules: Rules,
    ) -> None:
        self.behaviour = behaviour
        self.recommended = recommended
        self.current = current
        self.memory = memory
        self.now = now
        self.tick = tick
        self.rules = rules
        self.replicas = recommended
        self.steps: list[Step] = []
        self.blocked = ""
        self.blocked_by = ""

    def step(self, stage: str, after: int, detail: str) -> None:
        self.steps.append(Step(stage, self.replicas, after, detail))
        self.replicas = after

    def block(self, code: str, text: str) -> None:
        self.blocked_by, self.blocked = code, text

    def panic(self, until: float) -> None:
        panic, line = self.behaviour.panic, self.memory.corrected
        base = windows.lowest_line(line, panic.period, self.now, self.tick, self.current)
        text = f"panic until {clock(until)}"
        if base is not None and (base > 0 or not self.rules.leaves_zero):
            limit = base + base * panic.percent // 100
            if limit < self.replicas:
                text += f", at most {panic.percent} % above {base} within {panic.period:g} s"
                self.block("RateLimited", text)
                self.step("panic", min(self.replicas, limit), text)
        if self.replicas < self.current:
            self.block("Panicking", f"{text}: no scale-down before that")
            self.step("panic", self.current, f"{text}: no scale-down")
        elif not self.steps:
            self.step("panic", self.replicas, text)

    def down(self) -> None:
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
        line = windows.highest_line if self.rules.shrinks_from_highest else windows.lowest_line
        base = line(self.memory.corrected, rules.period, self.now, self.tick, self.current)
        if base is not None:
            self._limit(base, rules, self._bound(rules, base, -1), down=True)
        self.replicas = min(self.replicas, self.current)

    def up(self) -> None:
        rules, history = self.behaviour.up, self.memory.recommended
        lowest = windows.lowest_record(history, rules.window, self.now, self.tick)
        if lowest is not None and lowest < self.replicas:
            text = f"the lowest recommendation of the last {rules.window:g} s is {lowest}"
            self.step("stabilization", max(lowest, self.current), text)
            self.block("Stabilizing", text)
        base = windows.lowest_line(self.memory.corrected, rules.period, self.now, self.tick, self.current)
        if base is not None:
            limit = self._bound(rules, base, 1)
            if limit is not None and self.current == 0 and self.rules.leaves_zero:
                limit = max(limit, 1)
            self._limit(base, rules, limit, down=False)
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
