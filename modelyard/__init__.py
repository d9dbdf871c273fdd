"""Modelyard's domain: resources, decisions, and the places that talk to the outside. Knows nothing of Prefect."""

import logging
from typing import Any

from modelyard.objects import printable

__version__ = "0.1.0"

_other_record = logging.getLogRecordFactory()


class _Line(logging.LogRecord):
    """What we log names objects and quotes what tenants wrote: none of it may begin a line of its own."""

    def getMessage(self) -> str:
        return printable(super().getMessage())


def _record(name: str, *args: Any, **kwargs: Any) -> logging.LogRecord:
    return (_Line if name.startswith(__name__) else _other_record)(name, *args, **kwargs)


logging.setLogRecordFactory(_record)
