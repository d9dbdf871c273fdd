"""Final states of lifecycle runs, from what became of each object."""

from __future__ import annotations

import pytest

from modelyard.objects import Key
from modelyard.reconcile.kernel.run_view import Acted
from modelyard.reconcile.plans.object_result import ObjectResult, ResultState
from tasks.steps import conclude

CHAT, EVIL = Key("bank", "chat"), Key("evil", "x")
READY = ObjectResult(ResultState.DONE, "bank/chat answers")
LATE = ObjectResult(ResultState.PENDING, "bank/chat is not ready")
BROKEN = ObjectResult(ResultState.FAILED, "bank/chat cannot be rolled out")
GONE = ObjectResult(ResultState.GONE, "evil/x is gone")
TAKEN = "Another run has taken over: evil/x"


@pytest.mark.parametrize(
    ("acted", "results", "waits", "name", "message"),
    [
        pytest.param(Acted(), [READY, GONE], False, "Completed", "bank/chat answers", id="done, the other is gone"),
        pytest.param(Acted(), [GONE], False, "Completed", "nothing is left to do", id="all are gone"),
        pytest.param(Acted(), [LATE], False, "Completed", "bank/chat is not ready", id="nobody waits"),
        pytest.param(Acted(), [LATE], True, "Failed", "bank/chat is not ready", id="a pipeline waits"),
        pytest.param(Acted(), [BROKEN], False, "Failed", "bank/chat cannot be rolled out", id="failed"),
        pytest.param(
            Acted(lost={EVIL}, failed={CHAT: "no access"}),
            [BROKEN],
            False,
            "Failed",
            f"bank/chat: no access; {TAKEN}",
            id="a lost object does not hide a failure",
        ),
        pytest.param(Acted(lost={EVIL}), [BROKEN], False, "Failed", f"{BROKEN.text}; {TAKEN}", id="nor a failed step"),
        pytest.param(Acted(lost={EVIL}), [READY], True, "Completed", f"{READY.text}; {TAKEN}", id="one of two is lost"),
        pytest.param(
            Acted(lost={EVIL, CHAT}),
            [BROKEN],
            True,
            "Superseded",
            "Another run has taken over: bank/chat, evil/x",
            id="all are lost",
        ),
    ],
)
def test_a_run_ends_with_what_became_of_its_objects(
    acted: Acted, results: list[ObjectResult], waits: bool, name: str, message: str
) -> None:
    state = conclude(acted, [CHAT, EVIL], results, waits)
    assert (state.name, state.message) == (name, message)
