"""Short names for vendors' product labels, of nodes and of variants alike, so that both meet in one pool."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from modelyard.objects import PRODUCT_LABELS, partition_of, product_of_node

ACCELERATOR_LABEL = "inference.optimization/acceleratorName"
UNRESOLVED = "unresolved"

# Longest first within a family, so that GH200 is not read as H200's cousin by prefix.
_KNOWN = {
    name.upper(): name
    for name in (
        *("GB300", "GB200", "GH200", "B300", "B200", "B100", "H200", "H100", "H800", "H20", "A100", "A800"),
        *("A40", "A30", "A16", "A10G", "A10", "A2", "L40S", "L40G", "L40", "L20", "L4", "L2", "T4", "V100", "P100"),
        *("P40", "P4", "M60", "K80", "MI355X", "MI350X", "MI325X", "MI300X", "MI300A", "MI250X", "MI250", "MI210"),
        "MI100",
    )
}
_VENDORS = {"NVIDIA", "AMD", "INTEL", "TESLA", "QUADRO", "GEFORCE", "INSTINCT"}
_FORM = re.compile(r"(?i)^(\d+(\.\d+)?(GB|G|GIB)|PCIE|SXM\d*|SXM|OAM|NVL\d*|HBM\d*E?|VF|HVM|MEGA|SHARED)$")
_FORM_OF_CARD = re.compile(r"(?i)^(GENERATION|SERVER|WORKSTATION|LAPTOP|GPU|EDITION|BLACKWELL|MAX)$")
_MIG = re.compile(r"(?i)[-_ ]MIG[-_ ](\d+g\.\d+gb[\w.+]*)$")
_SPLIT = re.compile(r"[-_\s]+")
_GAUDI = re.compile(r"(?i)^gaudi(\d?)$")


@lru_cache(maxsize=1024)
def short_name(product: str) -> str:
    """The accelerator's short name, e.g. ``A100`` for ``NVIDIA-A100-PCIE-80GB``. Idempotent.

    A MIG slice keeps its profile. Products not in the table only lose vendor, memory size and form factor.
    """
    name = product.strip()
    mig = _MIG.search(name)
    suffix = f"-MIG-{mig[1].lower()}" if mig else ""
    if mig:
        name = name[: mig.start()]
    previous = None
    while name != previous:
        previous, name = name, _once(name)
    return name + suffix


def _once(name: str) -> str:
    words = [word for word in _SPLIT.split(name) if word]
    while len(words) > 1 and words[0].upper() in _VENDORS:
        words = words[1:]
    upper = [word.upper() for word in words]
    for card in ("RTX", "GTX"):
        if card in upper:
            tail = [w for w in words[upper.index(card) + 1 :] if not (_FORM.match(w) or _FORM_OF_CARD.match(w))]
            return "-".join([card, *tail])
    for index, word in enumerate(words):
        if gaudi := _GAUDI.match(word):
            number = gaudi[1] or next((w for w in words[index + 1 : index + 2] if w.isdigit()), "")
            return f"Gaudi-{number}" if number else "Gaudi"
    for word in upper:
        if word in _KNOWN:
            return _KNOWN[word]
    kept = [word for word in words if not _FORM.match(word)]
    # Not known: leave the spelling alone when there is nothing to strip.
    return name if not kept or len(kept) == len(_SPLIT.split(name)) else "-".join(kept)


def published_short_name(product: str) -> str:
    """The documented rule, with its documented faults: second part, or parts two and three for Intel."""
    parts = product.split("-")
    if len(parts) < 2:
        return product
    if parts[0].lower() == "intel" and len(parts) >= 3:
        return "-".join(parts[1:3])
    return parts[1]


def product_of(labels: Mapping[str, str]) -> str | None:
    """The product named by node labels or by a template's node selector; affinity alternatives: the first."""
    for label in PRODUCT_LABELS:
        if value := labels.get(label):
            return value.split(",")[0]
    return None


def pool_of_node(labels: Mapping[str, str], resource: str) -> str | None:
    """Return the pool a GPU resource of a node counts in, ``None`` when its product is not known."""
    product = product_of_node(labels, resource)
    return None if product is None else pool_name(product, resource)


def pool_name(accelerator: str, resource: str) -> str:
    """Return the pool of an accelerator asked for by a resource name: partitions and shares are no whole devices."""
    name, partition = short_name(accelerator), partition_of(resource)
    if not partition or "-MIG-" in name:
        return name
    return f"{name}-MIG-{partition.removeprefix('mig-')}" if partition.startswith("mig-") else f"{name}-{partition}"
