"""Where an object may refer to: into its own namespace, and into those that let it in. Pure.

Who may write in one namespace must not have anything read or written for them in another. So the other one's word
counts, and it stands on its Namespace object, which rights inside some other namespace do not reach.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from modelyard.objects import Namespace

ALLOW_FROM: Final = "modelyard.dev/allow-from"
"""Annotation of a Namespace: the namespaces, separated by commas, whose objects may refer to what is in it."""
NOT_PERMITTED: Final = "RefNotPermitted"
"""Reason of the condition of an object that refers to where it may not."""


def refusal(home: str, place: str, namespaces: Mapping[str, Namespace]) -> str | None:
    """Why an object in namespace ``home`` may not refer to anything in ``place``, with the remedy; ``None``: it may.

    ``namespaces`` are those that are known. One that is not, since there is none of the name or since namespaces may
    not be listed, lets nobody in.
    """
    if place == home:
        return None
    there = namespaces.get(place)
    if there is not None and home and home in map(str.strip, there.annotations.get(ALLOW_FROM, "").split(",")):
        return None
    unknown = " (it does not exist, or namespaces may not be listed)" if there is None else ""
    return (
        f"namespace {place} does not let in references from namespace {home}{unknown}: whoever administers it allows "
        f"them by the annotation {ALLOW_FROM}: {home} on Namespace {place}"
    )
