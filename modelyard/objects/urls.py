"""URLs that people type: what is wrong with one, and what to write. Pure."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from modelyard.objects.documents import shown

_HOST = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+")
"""A name or an address. In other characters one parser sees a host that another does not (``%2e``, ``\\``, ``。``)."""


def bare(url: str) -> str:
    """An address without user and password: what is connected to, and what messages show."""
    return re.sub(r"^(\w+://)?.*@", r"\1", url.strip().rstrip("/"), flags=re.DOTALL)


def describe_url_problem(url: str) -> str | None:
    """Return why this is no http or https URL and what to write, in one line; ``None`` where it is one.

    ``localhost:9090``, of which a parser takes the host for a scheme, is a URL without one. Shows no password.
    """
    text = shown(bare(url))
    if "://" not in url:
        likely = re.fullmatch(r"(?!https?:)[\w.\-\[\]:]+(/\S*)?", bare(url))
        return f"{text} has no scheme; add http://" if likely else f"{text} is no URL; write http://HOST[:PORT]"
    try:
        parts = urlsplit(url.strip())
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        return f"{text} is no URL: {error}; write http://HOST[:PORT]"
    if parts.scheme not in ("http", "https"):
        return f"{text} begins with {parts.scheme}://; write http:// or https://"
    if not host:
        return f"{text} names no host; write http://HOST[:PORT]"
    if "\\" in parts.netloc or re.search(r"[\t\r\n]", url.strip()) or not _HOST.fullmatch(host):
        return f"{text} has a character that no host has; write http://HOST[:PORT], other letters as xn--"
    return None


def check_http_url(url: str) -> str:
    """Return the URL. Raises ``ValueError`` with the problem: a validator of settings and parameters."""
    if problem := describe_url_problem(url):
        raise ValueError(problem)
    return url
