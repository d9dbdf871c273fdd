"""What a step logs of its messages, which tenants may write and change all the time."""

from __future__ import annotations

import pytest

from tasks import steps
from tasks.steps import LOG_PAUSE, StepMessages


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


def test_one_message_is_logged_at_a_time_and_the_last_one_in_any_case(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, lines = Clock(), list[str]()
    monkeypatch.setattr(steps, "time", clock)
    messages = StepMessages(lambda text, *args: lines.append(text % args))
    for number in range(100):
        messages.tell(f"{number} of 100")
        clock.now += 0.1
    assert lines == ["0 of 100", "50 of 100"]
    messages.flush()
    assert lines[2:] == ["99 of 100"]
    messages.flush()
    clock.now += LOG_PAUSE
    messages.tell("99 of 100")
    messages.tell("")
    assert len(lines) == 3, "it was logged before"
    messages.tell("begins again")
    messages.tell("in vain")
    clock.now += LOG_PAUSE
    messages.tell("in vain")
    assert lines[3:] == ["begins again", "in vain"]


def test_a_message_is_one_line() -> None:
    lines = list[str]()
    StepMessages(lambda text, *args: lines.append(text % args)).tell("fails\n12:00:00 | INFO | all is well\x1b[2K %s")
    assert lines == ["fails\\n12:00:00 | INFO | all is well\\x1b[2K %s"]
