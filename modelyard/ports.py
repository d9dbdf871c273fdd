"""TCP ports: the program that holds one, and the error of a server that cannot listen."""

from __future__ import annotations

import errno
import socket
from contextlib import suppress

_WILDCARDS = ("0.0.0.0", "::")


def find_holder(host: str, port: int) -> str:
    """Return the program that listens on a port of this or of all addresses, as ``nginx (process 4711)``.

    Empty where none does, or where this user may not see whose socket it is.
    """
    import psutil  # servers that start well never need it

    addresses = {*_WILDCARDS, host, *_resolve(host, port)}
    with suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            if connection.status != psutil.CONN_LISTEN or not connection.pid or not connection.laddr:
                continue
            if connection.laddr.port == port and (connection.laddr.ip in addresses or host in _WILDCARDS):
                return f"{psutil.Process(connection.pid).name()} (process {connection.pid})"
    return ""


def _resolve(host: str, port: int) -> list[str]:
    try:
        return [str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    except (OSError, OverflowError, UnicodeError):
        return []


def describe_listen_error(host: str, port: int, error: Exception, remedy: str = "choose another --port") -> str:
    """Return one line: which address cannot be listened on, why, and what to do."""
    place = f"cannot listen on {f'[{host}]' if ':' in host else host}:{port}"
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.EADDRINUSE:
        holder = find_holder(host, port)
        return f"{place}: {holder or 'another program'} listens there; end it, or {remedy}"
    if number in (errno.EACCES, errno.EPERM):
        return f"{place}: not permitted; ports below 1024 are for root: {remedy}"
    if number == errno.EADDRNOTAVAIL:
        return f"{place}: this machine has no such address; give one of its own, or 0.0.0.0 for all"
    if isinstance(error, socket.gaierror):
        return f"{place}: {host} has no address ({error.strerror}); give an address of this machine as --host"
    return f"{place}: {getattr(error, 'strerror', None) or error}; {remedy}"


def check_listenable(host: str, port: int) -> None:
    """Raise ``OSError`` (or ``OverflowError``) where a server could not listen on this address now.

    For third-party servers, whose own error does not say what to do.
    """
    for family, kind, protocol, _, address in socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    ):
        with socket.socket(family, kind, protocol) as probe:
            # As servers do: connections of a predecessor in TIME_WAIT are no obstacle.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
