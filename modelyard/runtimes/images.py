"""References to container images, and where manifests name them. Pure.

The grammar is that of the distribution project: a first part with a dot or a port, or ``localhost``, is the registry.
An image without one is Docker Hub's, below ``library/`` where its name has one part.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from modelyard.objects import cut, printable

DOCKER_HUB = "docker.io"
DEFAULT_TAG = "latest"
LONGEST = 512
_DEPTH = 40
_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_PART}(?:/{_PART})*")
_REGISTRY = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(r"[a-z0-9]+(?:[+._-][a-z0-9]+)*:[0-9a-fA-F]{32,256}")


class ImageReference(NamedTuple):
    """An image by registry, repository, and tag or digest; with both the digest decides."""

    registry: str
    repository: str
    tag: str = ""
    digest: str = ""

    @property
    def version(self) -> str:
        return self.digest or self.tag

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.registry}/{self.repository}{tag}" + (f"@{self.digest}" if self.digest else "")


def parse_image(text: str) -> ImageReference:
    """Read an image reference. Raises ``ValueError`` that says what is wrong with it."""

    def wrong(reason: str) -> ValueError:
        return ValueError(
            f"image {cut(printable(text[:300]), 200)!r}: {reason}; write [REGISTRY/]REPOSITORY[:TAG][@DIGEST]"
        )

    if len(text) > LONGEST:
        raise wrong(f"it is longer than {LONGEST} characters")
    name, at, digest = text.partition("@")
    if at and not _DIGEST.fullmatch(digest):
        raise wrong(f"{digest[:80]!r} is no digest")
    first, slash, rest = name.partition("/")
    registry = first if slash and ("." in first or ":" in first or first == "localhost") else ""
    path = rest if registry else name
    repository, colon, tag = path.rpartition(":") if ":" in path.rpartition("/")[2] else (path, "", "")
    if registry and not _REGISTRY.fullmatch(registry):
        raise wrong(f"{registry[:80]!r} is no registry")
    if not _REPOSITORY.fullmatch(repository):
        raise wrong(f"{repository[:80]!r} is no repository (lower-case letters, digits and . _ - /)")
    if colon and not _TAG.fullmatch(tag):
        raise wrong(f"{tag[:80]!r} is no tag")
    if registry in ("", "index.docker.io", DOCKER_HUB):
        registry, repository = DOCKER_HUB, repository if "/" in repository else f"library/{repository}"
    return ImageReference(registry, repository, tag or ("" if digest else DEFAULT_TAG), digest)


def images_of(manifest: Any, depth: int = _DEPTH) -> Iterator[str]:
    """Yield every image that a manifest names, in its order; repetitions included."""
    if depth == 0:
        return
    if isinstance(manifest, dict):
        for key, value in manifest.items():
            if key == "image" and isinstance(value, str):
                yield value
            else:
                yield from images_of(value, depth - 1)
    elif isinstance(manifest, list):
        for value in manifest:
            yield from images_of(value, depth - 1)
