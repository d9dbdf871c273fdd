"""Accelerators as Kubernetes knows them: which extended resources are devices, and which node labels name the product.

Device plugins advertise devices under names of their vendor's choice. Everything that asks how many accelerators a
container, a pod or a node has asks here, so that one table decides. A row lists the names of one vendor. Names with
``*`` never match amounts of a device's memory or compute (``nvidia.com/gpumem``, ``gpu.intel.com/millicores``), which
sharing plugins let pods ask for next to the device itself.

``MODELYARD_ACCELERATORS`` in the environment adds names: ``vendor.example/chip-*``, or ``chip`` for any vendor, several
separated by commas.

Sources of the names: the device plugins' own documentation (NVIDIA k8s-device-plugin, ROCm k8s-device-plugin, Intel
device plugins for Kubernetes, AWS Neuron, GKE, Furiosa, Tenstorrent, IBM Spyre) and the default configuration of HAMi
for vendors whose plugins it schedules.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, Final, NamedTuple

VARIABLE: Final = "MODELYARD_ACCELERATORS"
_AMOUNT: Final = re.compile(r"(mem(ory)?(\.max)?|cores?|percent(age)?|monitoring|millicores|tiles|priority|count)$")
_CUSTOM: Final = "custom"


class AcceleratorFamily(NamedTuple):
    """The device resources of one vendor.

    ``domains`` and ``names`` are the parts of a resource name before and after the slash, in lower case, with ``*``.
    ``apart`` are the names that are counted apart from whole devices: partitions, shares and cores.
    ``labels`` are the node labels that name the product, best first.
    """

    vendor: str
    domains: tuple[str, ...]
    names: tuple[str, ...]
    apart: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()

    def includes(self, domain: str, name: str) -> bool:
        if not any(fnmatchcase(domain, pattern) for pattern in self.domains):
            return False
        return name in self.names or (
            _AMOUNT.search(name) is None and any(fnmatchcase(name, pattern) for pattern in self.names)
        )


_NVIDIA_LABELS = ("nvidia.com/gpu.product", "cloud.google.com/gke-accelerator")
FAMILIES: Final = (
    AcceleratorFamily(
        "NVIDIA",
        ("nvidia.com",),
        # Whole GPUs, time slices, MIG and MPS profiles, vGPUs, and GPUs named after their product.
        (
            *("gpu", "gpu.*", "gpu-*", "pgpu", "vgpu*", "mig-*", "[abhlptv][0-9]*", "g[abhpv][0-9]*", "ad[0-9]*"),
            *("rtx*", "grid*"),
        ),
        ("gpu.*", "gpu-*", "mig-*"),
        _NVIDIA_LABELS,
    ),
    AcceleratorFamily("NVIDIA", ("volcano.sh",), ("vgpu-number", "gpu-number"), ("vgpu-number",), _NVIDIA_LABELS),
    AcceleratorFamily("NVIDIA", ("k8s.amazonaws.com",), ("vgpu",), ("vgpu",), _NVIDIA_LABELS),
    AcceleratorFamily(
        "AMD",
        ("amd.com",),
        ("gpu", "gpu.*", "[sdtqc]px_nps*"),
        ("gpu.*", "[sdtqc]px_nps*"),
        ("amd.com/gpu.product-name", "amd.com/gpu.product"),
    ),
    AcceleratorFamily("Intel", ("intel.com",), ("gpu",), (), ("intel.com/gpu.product", "gpu.intel.com/product")),
    AcceleratorFamily("Intel", ("gpu.intel.com",), ("*",), (), ("gpu.intel.com/product", "intel.com/gpu.product")),
    AcceleratorFamily("Intel", ("npu.intel.com",), ("*",)),
    AcceleratorFamily("Intel Gaudi", ("habana.ai",), ("gaudi*",)),
    AcceleratorFamily("Google", ("google.com",), ("tpu",), (), ("cloud.google.com/gke-tpu-accelerator",)),
    AcceleratorFamily("Google", ("cloud-tpus.google.com",), ("*",)),
    AcceleratorFamily(
        "AWS",
        ("aws.amazon.com",),
        # A node has its devices under all three names.
        ("neuron", "neurondevice", "neuroncore"),
        ("neurondevice", "neuroncore"),
        ("karpenter.k8s.aws/instance-accelerator-name",),
    ),
    AcceleratorFamily(
        "Huawei", ("huawei.com",), ("ascend*", "npu"), ("ascend*-*c*",), ("node.kubernetes.io/npu.chip.name",)
    ),
    AcceleratorFamily("Cambricon", ("cambricon.com",), ("mlu*", "vmlu*"), ("mlu*.*", "vmlu*")),
    AcceleratorFamily("Hygon", ("hygon.com",), ("dcu", "dcunum", "dcu-share*", "vdcu*"), ("dcu-share*", "vdcu*")),
    AcceleratorFamily("MetaX", ("metax-tech.com",), ("gpu", "sgpu"), ("sgpu",)),
    AcceleratorFamily("Iluvatar", ("iluvatar.com", "iluvatar.ai"), ("gpu", "vgpu", "*-vgpu"), ("vgpu", "*-vgpu")),
    AcceleratorFamily("Enflame", ("enflame.com",), ("gcu", "dtu", "vgcu", "drs-gcu"), ("vgcu", "drs-gcu")),
    AcceleratorFamily("Moore Threads", ("mthreads.com",), ("gpu", "vgpu"), ("vgpu",)),
    AcceleratorFamily("Kunlunxin", ("kunlunxin.com", "baidu.com"), ("xpu", "vxpu"), ("vxpu",)),
    AcceleratorFamily("Biren", ("birentech.com",), ("gpu", "*-gpu"), ("*-gpu",)),
    AcceleratorFamily("T-Head", ("alibabacloud.com", "aliyun.com"), ("ppu", "ppu-*", "ppu.*"), ("ppu-*", "ppu.*")),
    AcceleratorFamily("Vastai", ("vastaitech.com",), ("va", "va[0-9]*")),
    AcceleratorFamily("Qualcomm", ("qualcomm.com",), ("qaic*",)),
    AcceleratorFamily("FuriosaAI", ("furiosa.ai", "*.furiosa.ai"), ("npu", "rngd*", "warboy*")),
    AcceleratorFamily("Rebellions", ("rebellions.ai",), ("npu", "atom*", "rebel*")),
    AcceleratorFamily("Tenstorrent", ("tenstorrent.com",), ("*",)),
    AcceleratorFamily("IBM", ("ibm.com",), ("spyre_*", "aiu_*"), (), ("ibm.com/spyre.product",)),
    # Other vendors, by what the field calls such devices.
    AcceleratorFamily("", ("*",), ("gpu", "vgpu", "npu", "vnpu", "tpu", "xpu", "dcu", "gcu", "mlu", "ipu", "ppu")),
)
"""Every known device resource; the first row that includes a name counts."""

PRODUCT_LABELS: Final = tuple(
    dict.fromkeys(
        (
            *("nvidia.com/gpu.product", "amd.com/gpu.product-name", "amd.com/gpu.product", "intel.com/gpu.product"),
            "cloud.google.com/gke-accelerator",
            *(label for family in FAMILIES for label in family.labels),
        )
    )
)
"""Node labels that name a product, best first."""


def family_of(resource: str) -> AcceleratorFamily | None:
    """Return the family of a resource name, ``None`` for what is no accelerator."""
    return _family_of(resource, os.environ.get(VARIABLE, ""))


@lru_cache(maxsize=4096)
def _family_of(resource: str, custom: str) -> AcceleratorFamily | None:
    domain, slash, name = resource.lower().partition("/")
    if not slash:
        return None
    if (family := next((row for row in FAMILIES if row.includes(domain, name)), None)) is not None:
        return family
    patterns = filter(None, re.split(r"[,\s]+", custom.lower()))
    listed = any(fnmatchcase(resource.lower() if "/" in pattern else name, pattern) for pattern in patterns)
    return AcceleratorFamily(_CUSTOM, (domain,), (name,)) if listed else None


def partition_of(resource: str) -> str:
    """Return the name of a partition, share or core, such as ``mig-3g.40gb``; ``""`` for whole devices."""
    family, name = family_of(resource), resource.partition("/")[2].lower()
    return name if family is not None and any(fnmatchcase(name, pattern) for pattern in family.apart) else ""


def product_of_node(labels: Mapping[str, str], resource: str) -> str | None:
    """Return the product that a node's labels name for a resource, ``None`` where they name none."""
    family = family_of(resource)
    return next((labels[label] for label in family.labels if label in labels), None) if family is not None else None


def count(quantity: Any) -> int:
    """Return a number of devices as a whole number; anything unreadable counts as none."""
    try:
        return int(quantity)
    except (TypeError, ValueError, OverflowError):
        return 0


def devices(amounts: Mapping[str, Any]) -> dict[str, int]:
    """Return the numbers of devices among amounts (a container's requests, a node's allocatable) by resource name."""
    return {name: count(amount) for name, amount in amounts.items() if family_of(name) is not None}
