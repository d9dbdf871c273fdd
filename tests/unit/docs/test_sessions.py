"""Pages with sessions of commands that need nothing but files show what these print."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from command_line import modelyard

ROOT = Path(__file__).resolve().parents[3]
SESSION = re.compile(r"^```console\n\$ (modelyard (?:[^\n]*\\\n)*[^\n]*\n)(.*?)^```$", re.DOTALL | re.MULTILINE)
PAGES = {page: SESSION.findall((ROOT / f"docs/{page}.md").read_text()) for page in ("runtimes", "services")}


@pytest.mark.parametrize(("command", "shown"), [found for sessions in PAGES.values() for found in sessions])
def test_a_session_shows_what_its_command_prints(command: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    program, *arguments = shlex.split(command.replace("\\\n", ""))
    assert program == "modelyard"
    assert modelyard(*arguments).out == shown


def test_there_are_sessions() -> None:
    assert all(PAGES.values())
