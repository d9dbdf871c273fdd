"""Modelyard's Prefect flows: one file per lifecycle. No arithmetic, no client calls."""

from __future__ import annotations

import logging


def is_worth_reading(record: logging.LogRecord) -> bool:
    """Return whether a log line of a task run says more than that it completed, which its state says."""
    return record.levelno > logging.INFO or not record.getMessage().startswith("Finished in state Completed(")


# The documented loggers of Prefect. A shift would fill its page with such lines, several a minute.
logging.getLogger("prefect.task_runs").addFilter(is_worth_reading)
