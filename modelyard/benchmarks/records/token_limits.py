"""Limits of the tokens of a request that is measured; apart, so that models of parameters load quickly."""

from __future__ import annotations

from typing import Final

FEWEST_OUTPUT_TOKENS: Final = 2
"""Time per output token is the time between two of them; genai-bench divides by their number less one."""
MOST_TOKENS: Final = 1_000_000
"""Tokens of one prompt or answer; no served model has a longer context."""
