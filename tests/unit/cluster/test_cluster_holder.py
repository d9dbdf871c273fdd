"""Whether a holder of a Lease still lives: real processes, killed, stopped and replaced."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from modelyard.cluster import Holder

linux = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is known, and the lease runs out")
SAY_WHO = "from modelyard.cluster import Holder; import time; print(Holder.here(), flush=True); time.sleep(600)"


def identity(holder: Holder) -> str:
    return f"{holder}_0123abcd"


@pytest.fixture(scope="module")
def victim() -> Iterator[tuple[subprocess.Popen[str], Holder]]:
    """A process that said who it is."""
    with subprocess.Popen([sys.executable, "-c", SAY_WHO], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        holder = Holder.read(f"{process.stdout.readline().strip()}_0123abcd")
        assert holder is not None
        yield process, holder
        process.kill()


@linux
def test_a_process_that_was_killed_has_ended_even_before_it_is_collected(
    victim: tuple[subprocess.Popen[str], Holder],
) -> None:
    process, holder = victim
    assert not holder.has_ended()
    process.send_signal(signal.SIGSTOP)
    assert not holder.has_ended(), "it is silent, and may wake"
    process.kill()
    while not holder.has_ended():
        time.sleep(0.01)
    process.wait()
    assert holder.has_ended()


@linux
def test_another_process_with_the_same_number_is_not_the_holder() -> None:
    here = Holder.here()
    assert here.pid == os.getpid()
    assert not here.has_ended()
    assert here._replace(started=here.started + 1).has_ended()


@pytest.mark.parametrize("place", ["", "0123456789abcdef"])
def test_of_a_process_elsewhere_nothing_is_known(place: str) -> None:
    assert not Holder.here()._replace(place=place, started=1).has_ended()


def test_what_is_in_the_lease_says_who_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Holder.read(identity(Holder.here())) == Holder.here()
    for part, value in {"NAMESPACE": "system", "NAME": "worker-5d8f", "UID": "1b4e28ba-2fa1"}.items():
        monkeypatch.setenv(f"POD_{part}", value)
    here = Holder.here()
    assert (here.name, here.pod_uid) == ("system/worker-5d8f", "1b4e28ba-2fa1")
    assert Holder.read(identity(here)) == here


@pytest.mark.parametrize("text", ["", "a", "host_12_abcd", "h_0_1_ab__12", "h_1_x_ab__12", "_" * 2000, "h_1_2_zz__12"])
def test_another_programs_identity_says_nothing(text: str) -> None:
    assert Holder.read(text) is None
