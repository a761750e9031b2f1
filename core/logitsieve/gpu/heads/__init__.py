"""Heads on a GPU, by the names of the host's, with answers that a device finds."""

from logitsieve.gpu.heads.base import DeviceHead
from logitsieve.gpu.heads.gpu_exact import GpuAssured, GpuCertified, GpuEstimated, GpuExact
from logitsieve.gpu.heads.gpu_screen import GpuScreen
from logitsieve.gpu.heads.gpu_svd import GpuSvd

GPU_HEADS: dict[str, type[DeviceHead]] = {
    "exact": GpuExact,
    "certified": GpuCertified,
    "assured": GpuAssured,
    "estimated": GpuEstimated,
    "screen": GpuScreen,
    "svd": GpuSvd,
}
