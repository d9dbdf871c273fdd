"""Which resources of device plugins are accelerators, by the names that their vendors document."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from modelyard.objects.accelerators import (
    FAMILIES,
    VARIABLE,
    devices,
    family_of,
    partition_of,
    product_of_node,
)
from modelyard.objects.parse import container_gpus, gpu_resource, node, pod, pod_gpus, template_gpus

DEVICES_TEXT = """
nvidia.com/gpu nvidia.com/gpu.shared nvidia.com/mig-1g.5gb nvidia.com/mig-3g.40gb nvidia.com/mig-1g.10gb.me
nvidia.com/mig-1g.5gb.shared nvidia.com/gpu-10gb nvidia.com/gpu.partitioned.mig-3g.40gb nvidia.com/a100
nvidia.com/GH100_H100_SXM5_80GB nvidia.com/GRID_T4-1Q volcano.sh/vgpu-number k8s.amazonaws.com/vgpu
amd.com/gpu amd.com/cpx_nps4 amd.com/spx_nps1 amd.com/cpx_nps1 amd.com/dpx_nps2
habana.ai/gaudi gpu.intel.com/i915 gpu.intel.com/xe intel.com/gpu npu.intel.com/accel
google.com/tpu cloud-tpus.google.com/v3 aws.amazon.com/neuron aws.amazon.com/neuroncore aws.amazon.com/neurondevice
huawei.com/Ascend910 huawei.com/Ascend910B huawei.com/Ascend910B3 huawei.com/Ascend310P huawei.com/ascend-1980
huawei.com/Ascend910-16c huawei.com/npu
cambricon.com/mlu cambricon.com/mlu370 cambricon.com/vmlu hygon.com/dcu hygon.com/dcunum metax-tech.com/gpu
metax-tech.com/sgpu iluvatar.com/gpu iluvatar.ai/gpu iluvatar.ai/MR-V100-vgpu enflame.com/gcu enflame.com/vgcu
mthreads.com/gpu mthreads.com/vgpu kunlunxin.com/xpu kunlunxin.com/vxpu birentech.com/gpu birentech.com/1-4-gpu
alibabacloud.com/ppu alibabacloud.com/ppu-1-4 vastaitech.com/va qualcomm.com/qaic furiosa.ai/rngd beta.furiosa.ai/npu
rebellions.ai/ATOM tenstorrent.com/n150 tenstorrent.com/blackhole ibm.com/spyre_pf newcomer.example/npu
"""
OTHERS_TEXT = """
cpu memory ephemeral-storage hugepages-2Mi gpu
nvidia.com/gpumem nvidia.com/gpumem-percentage nvidia.com/gpucores nvidia.com/priority nvidia.com/hostdev
nvidia.com/sriov_rdma_vf volcano.sh/vgpu-memory volcano.sh/vgpu-cores aliyun.com/gpu-mem tencent.com/vcuda-core
gpu.intel.com/millicores gpu.intel.com/memory.max gpu.intel.com/tiles gpu.intel.com/i915_monitoring
gpu.intel.com/xe_monitoring gpu.intel.com/monitoring huawei.com/Ascend910B-memory cambricon.com/mlu.smlu.vmemory
cambricon.com/mlu.smlu.vcore hygon.com/dcumem hygon.com/dcucores metax-tech.com/vcore metax-tech.com/vmemory
iluvatar.ai/vcuda-core iluvatar.ai/MR-V100.vMem enflame.com/vgcu-percentage mthreads.com/sgpu-core
mthreads.com/sgpu-memory kunlunxin.com/vxpu-memory rdma/hca vpc.amazonaws.com/efa smarter-devices/fuse
"""


@pytest.mark.parametrize("resource", DEVICES_TEXT.split())
def test_a_device_of_any_vendor_is_an_accelerator(resource: str) -> None:
    container = {"name": "c", "resources": {"limits": {"cpu": "4", resource: "2"}}}
    assert container_gpus(container) == {resource: 2}
    assert template_gpus({"containers": [container]}) == (2, resource)
    assert gpu_resource({"containers": [container]}) == resource
    assert node({"metadata": {"name": "n"}, "status": {"allocatable": {resource: "8"}}}).gpus == {resource: 8}


@pytest.mark.parametrize("resource", OTHERS_TEXT.split())
def test_an_amount_of_a_device_and_other_hardware_are_none(resource: str) -> None:
    assert family_of(resource) is None
    assert devices({resource: "20000"}) == {}


def test_limits_come_before_requests_and_each_resource_counts_once() -> None:
    both = {"requests": {"nvidia.com/mig-1g.5gb": 1}, "limits": {"nvidia.com/mig-1g.5gb": 1, "nvidia.com/gpumem": 3000}}
    assert container_gpus({"resources": both}) == {"nvidia.com/mig-1g.5gb": 1}
    assert container_gpus({"resources": {"limits": {"amd.com/gpu": "0", "google.com/tpu": "4"}}}) == {
        "google.com/tpu": 4
    }
    assert container_gpus({"resources": {"limits": {"amd.com/gpu": "many"}}}) == {}


def test_a_pod_names_the_resource_that_it_draws_from() -> None:
    spec = {"containers": [{"name": "c"}, {"name": "d", "resources": {"limits": {"habana.ai/gaudi": "8"}}}]}
    seen = pod({"metadata": {"name": "p", "namespace": "n"}, "spec": spec})
    assert (seen.gpus, seen.gpu_resource) == (8, "habana.ai/gaudi")
    assert (pod_gpus({}), gpu_resource({})) == (0, "")


@pytest.mark.parametrize(
    ("listed", "resource", "known"),
    [
        ("vendor.example/chip", "vendor.example/chip", True),
        ("a.example/x, vendor.example/chip-*", "vendor.example/chip-2", True),
        ("vendor.example/chip-*", "vendor.example/chip", False),
        ("chip", "Vendor.example/Chip", True),
        ("*", "cpu", False),
        (",,", "vendor.example/chip", False),
    ],
)
def test_an_administrator_adds_resources(
    monkeypatch: pytest.MonkeyPatch, listed: str, resource: str, known: bool
) -> None:
    assert family_of(resource) is None
    monkeypatch.setenv(VARIABLE, listed)
    assert (family_of(resource) is not None) is known
    assert family_of("nvidia.com/gpu") is FAMILIES[0], "those that are known stay what they are"


@pytest.mark.parametrize(
    ("resource", "partition"),
    [
        ("nvidia.com/gpu", ""),
        ("nvidia.com/h100", ""),
        ("nvidia.com/mig-3g.40gb", "mig-3g.40gb"),
        ("nvidia.com/gpu.shared", "gpu.shared"),
        ("amd.com/cpx_nps4", "cpx_nps4"),
        ("aws.amazon.com/neuron", ""),
        ("aws.amazon.com/neuroncore", "neuroncore"),
        ("huawei.com/Ascend910B", ""),
        ("huawei.com/Ascend910-4c", "ascend910-4c"),
        ("newcomer.example/npu", ""),
        ("cpu", ""),
    ],
)
def test_partitions_are_told_from_whole_devices(resource: str, partition: str) -> None:
    assert partition_of(resource) == partition


@pytest.mark.parametrize(
    ("labels", "resource", "product"),
    [
        ({"nvidia.com/gpu.product": "NVIDIA-H100"}, "nvidia.com/mig-3g.40gb", "NVIDIA-H100"),
        ({"cloud.google.com/gke-accelerator": "nvidia-l4"}, "nvidia.com/gpu", "nvidia-l4"),
        ({"cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice"}, "google.com/tpu", "tpu-v6e-slice"),
        ({"gpu.intel.com/product": "Max_1550"}, "gpu.intel.com/i915", "Max_1550"),
        ({"nvidia.com/gpu.product": "NVIDIA-H100"}, "amd.com/gpu", None),
        ({"nvidia.com/gpu.product": "NVIDIA-H100"}, "tenstorrent.com/n150", None),
    ],
)
def test_a_product_is_named_by_its_own_vendors_label(
    labels: dict[str, str], resource: str, product: str | None
) -> None:
    assert product_of_node(labels, resource) == product


@pytest.mark.parametrize("amount", [float("inf"), float("nan"), "9" * 5000, None, [], {}, "two"])
def test_an_amount_that_is_no_number_counts_as_none(amount: object) -> None:
    assert devices({"nvidia.com/gpu": amount}) == {"nvidia.com/gpu": 0}


@given(st.text())
def test_no_name_is_too_odd(resource: str) -> None:
    assert partition_of(resource) == "" or family_of(resource) is not None
