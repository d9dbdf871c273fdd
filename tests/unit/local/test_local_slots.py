"""Slots: no two holders share ports or addresses, whatever becomes of the holders."""

from __future__ import annotations

import os
import socket

import pytest

from modelyard.local.paths import LocalClusterError
from modelyard.local.processes import ProcessIdentity, wait_all_gone
from modelyard.local.slots import claim


def test_two_slots_share_nothing() -> None:
    with claim(150) as first, claim(150) as second:
        assert first.number != second.number
        assert abs(first.ports.base - second.ports.base) >= 8
        assert first.pod_prefix != second.pod_prefix


def test_a_released_slot_is_given_again() -> None:
    with claim(160) as slot:
        number = slot.number
    with claim(number) as again:
        assert again.number == number


def test_a_slot_with_a_taken_port_is_passed_over() -> None:
    with claim(170) as slot:
        number, port = slot.number, slot.ports.scheduler
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        with claim(number) as slot:
            assert slot.number != number


def test_chosen_ports_that_are_taken_are_named() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
        # Others may hold some of the following ports; they are named as well then.
        with pytest.raises(LocalClusterError, match=rf"ports {port}\b.*--base-port"):
            claim(0, base_port=port).__enter__()


def test_a_dead_holder_holds_nothing() -> None:
    told, tells = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(tells, str(claim(180).__enter__().number).encode())  # another if somebody on this machine holds it
        os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    number = int(os.read(told, 10))
    assert wait_all_gone([ProcessIdentity(pid=child, started=0)], 1)
    with claim(number) as slot:
        assert slot.number == number
