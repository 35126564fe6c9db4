"""What differs between the devices that engines run on: one table that estimates and tests both read.

A run on a CPU over gloo holds the same tensors as a run on CUDA, except for what stands here.
"""

from __future__ import annotations

from estimators.values import dataclass


@dataclass(frozen=True, slots=True)
class Device:
    """One kind of device.

    ``foreach_default``: torch.optim chooses the foreach implementation by itself (torch/optim/optimizer.py,
    ``_default_to_fused_or_foreach``: only for the device types of ``_get_foreach_kernels_supported_devices``).
    ``separate_host``: offloaded tensors lie in another memory than the rest. ``builds_apart``: the model is built in
    another memory, and moved when it is whole. ``pins_host``: page-locked memory exists.

    What autograd keeps (aten/src/ATen/native, torch/csrc/autograd):
    ``fused_dropout``: native_dropout with a mask of bools, else noise of the input's dtype.
    ``fp32_statistics``: layer_norm keeps mean and rstd in fp32 whatever its input.
    ``autocast_to_fp32``: operations here in use that torch.autocast takes to fp32 (autocast_mode.h).
    ``flash_rng_bytes``: random state that flash attention keeps beside its output.
    ``dequantises``: a product with a 4-bit weight makes the whole weight in 16 bit first (bitsandbytes does for more than
    about 1,500 tokens; below it multiplies packed blocks, as on a CPU).
    ``flash_workspace``: backward of flash attention accumulates dq in fp32, and dk, dv for every query head.
    """

    name: str
    foreach_default: bool
    separate_host: bool
    builds_apart: bool
    pins_host: bool
    pinned_rounds_to_power_of_two: bool
    fused_dropout: bool
    fp32_statistics: bool
    autocast_to_fp32: frozenset[str]
    flash_rng_bytes: int
    flash_workspace: bool
    dequantises: bool


_CUDA_FP32 = frozenset({"softmax", "log_softmax", "layer_norm", "cross_entropy", "power", "rsqrt", "sum", "norm"})

DEVICES = {
    "cuda": Device("cuda", True, True, True, True, True, True, True, _CUDA_FP32, 24, True, True),
    "cpu": Device("cpu", False, False, False, False, False, False, False, frozenset(), 0, False, False),
    # a CPU in the place of a card, of whose tensors it is known which the engine put on the host
    "simulated": Device("simulated", False, True, False, False, False, False, False, frozenset(), 0, False, False),
}
