"""How many examples property tests try: few and always the same by default, many and random in the thorough profile."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from hypothesis import settings

Test = TypeVar("Test", bound=Callable[..., None])


def register_profiles() -> None:
    """Make both profiles known, and the quick one the default (`--hypothesis-profile` chooses another)."""
    settings.register_profile("ci", max_examples=30, deadline=None, derandomize=True, print_blob=True)
    settings.register_profile("thorough", max_examples=1000, deadline=None, print_blob=True)
    settings.load_profile("ci")


def few(test: Test) -> Test:
    """A third of the profile's examples, for a test whose examples take long."""
    return settings(max_examples=settings.default.max_examples // 3)(test)
