"""What differs between the devices that engines run on: one table that estimates and tests both read.

A run on a CPU over gloo holds the same tensors as a run on CUDA, except for what stands here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Device:
    """One kind of device.

    ``foreach_default``: torch.optim chooses the foreach implementation by itself (torch/optim/optimizer.py,
    ``_default_to_fused_or_foreach``: only for the device types of ``_get_foreach_kernels_supported_devices``).
    ``separate_host``: offloaded tensors lie in another memory than the rest. ``pins_host``: page-locked memory exists.
    """

    name: str
    foreach_default: bool
    separate_host: bool
    pins_host: bool
    pinned_rounds_to_power_of_two: bool


DEVICES = {
    "cuda": Device("cuda", True, True, True, True),
    "cpu": Device("cpu", False, False, False, False),
}
