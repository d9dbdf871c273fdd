"""Record windows and line windows over a ``History`` of change points. Immutable.

The documented windows take one entry per tick. Here only changes are stored: the newest value is taken to have been
recorded at every tick up to the one before now, also in ticks that were skipped or in which no process was alive, and
an older value carries the time until which it held. That says the same and needs no write while nothing changes.

Source: Kthena autoscaler reference, "Corrected replicas (behaviour)".
"""

from __future__ import annotations

from modelyard.autoscaling.memory import History, Mark

KEPT = 1800.0
"""Seconds of history that are kept, whatever the windows are now: the longest window a policy may ask for."""

MOST = 200
"""Change points kept at most; the oldest go first."""


def seeded(value: int, now: float) -> History:
    """A history that starts now with ``value`` in force."""
    return History(newest=(now, value))


def record(history: History, value: int, now: float, tick: float, *, line: bool) -> History:
    """The history with ``value`` recorded now, one ``tick`` in seconds after the last; itself when nothing changes.

    A line keeps the old value until now, a record until one tick ago. Values that can win no window are forgotten.
    """
    if history.newest is None:
        return History(newest=(now, value), past=history.past)
    since, before = history.newest
    if before == value:
        return history
    until = now if line else max(since, now - tick)
    return History(newest=(now, value), past=_pruned((*history.past, (until, before)), value, now))


def highest_record(history: History, length: float, now: float, tick: float) -> int | None:
    """The highest value recorded in the last ``length`` seconds, bounds included; ``None`` when there is none."""
    return max(_records(history, length, now, tick), default=None)


def lowest_record(history: History, length: float, now: float, tick: float) -> int | None:
    """The lowest value recorded in the last ``length`` seconds, bounds included; ``None`` when there is none."""
    return min(_records(history, length, now, tick), default=None)


def highest_line(history: History, length: float, now: float, tick: float, current: int) -> int | None:
    """The highest value in force at any time of the last ``length`` seconds, or ``current``; ``None``: no limit."""
    return max((current, *_in_force(history, length, now, tick))) if length > 0 else None


def lowest_line(history: History, length: float, now: float, tick: float, current: int) -> int | None:
    """The lowest value in force at any time of the last ``length`` seconds, or ``current``; ``None``: no limit."""
    return min((current, *_in_force(history, length, now, tick))) if length > 0 else None


def held_until(history: History, length: float, now: float, tick: float, *, above: int | None = None) -> float | None:
    """Until when, inclusive, a window of ``length`` seconds holds a record ``above`` that number; ``None``: none."""
    if length <= 0:
        return None
    found = [until + length for until, value in history.past if above is None or value > above]
    if history.newest is not None and (above is None or history.newest[1] > above):
        found.append(_last(history.newest, now, tick) + length)
    found = [until for until in found if until >= now]
    return max(found, default=None)


def _last(newest: Mark, now: float, tick: float) -> float:
    return max(newest[0], now - tick)


def _records(history: History, length: float, now: float, tick: float) -> list[int]:
    if length <= 0:
        return []
    found = [value for until, value in history.past if until + length >= now]
    if history.newest is not None and _last(history.newest, now, tick) + length >= now:
        found.append(history.newest[1])
    return found


def _in_force(history: History, length: float, now: float, tick: float) -> list[int]:
    found = [value for until, value in history.past if until + length >= now]
    # The value in force last is forgotten after twice the length without a new record.
    if history.newest is not None and _last(history.newest, now, tick) + 2 * length >= now:
        found.append(history.newest[1])
    return found


def _pruned(past: tuple[Mark, ...], newest: int, now: float) -> tuple[Mark, ...]:
    kept: list[Mark] = []
    high = low = newest
    for until, value in reversed(past):
        if until + KEPT < now:
            break
        if value > high or value < low:
            kept.append((until, value))
        high, low = max(high, value), min(low, value)
    return tuple(reversed(kept[:MOST]))
