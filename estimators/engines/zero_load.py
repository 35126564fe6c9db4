"""What loading a model costs before its engine has it: copies in another dtype, adapters one by one."""

from __future__ import annotations

from estimators.devices import DEVICES
from estimators.engines.zero_common import Sizes, Terms
from estimators.model.spec import Part
from estimators.result import Term
from estimators.run import Run
from estimators.workload import DTYPE_BYTES

FP32 = DTYPE_BYTES["fp32"]


def load_copy(run: Run, sizes: Sizes) -> list[Terms]:
    """A model that was built wider than it trains is cast parameter by parameter (``_cast_module_mixed_precision``).

    On a host of its own that happens before the model moves to the GPU.
    """
    wide = DTYPE_BYTES[run.settings.load_dtype]
    if wide <= sizes.element or DEVICES[run.settings.device].builds_apart:
        return []
    largest = max(p.numel for part in run.model.parts for p in part.parameters)
    return [
        (
            Term("model as it was built", "params", run.model.num_params * wide, f"all parameters x {wide} B"),
            Term("cast copy", "temporaries", largest * sizes.element, f"largest parameter x {sizes.element} B"),
        )
    ]


def adapters_made(run: Run, sizes: Sizes, whole: int) -> list[Terms]:
    """Each adapter is made in fp32, then its two matrices are cast, A first (peft/tuners/tuners_utils.py,
    ``_move_adapter_to_device_of_base_layer``); on stacked experts behind all others. ``whole``: bytes of all parameters."""
    if run.workload.method != "lora" or sizes.element >= FP32:
        return []
    pairs = [pair for part in run.model.parts for pair in _pairs(part)]
    pairs.sort(key=lambda pair: pair[0])
    most = (0, 0)
    later = 0  # bytes of those that are not there yet
    for _, a, b in reversed(pairs):
        narrow = (a + b) * sizes.element
        casting_a = FP32 * (a + b), b * sizes.element + later
        casting_b = FP32 * b, later
        most = max(most, casting_a, casting_b, key=lambda pair: pair[0] - pair[1])
        later += narrow
    wide, missing = most
    return [
        (
            Term("parameters so far", "params", whole - missing, "every parameter but adapters that come later"),
            Term("adapter in fp32", "temporaries", wide, "A and B as peft makes them, before they are cast"),
        )
    ]


def _pairs(part: Part) -> list[tuple[bool, int, int]]:
    """Whether experts are adapted, then elements of A and B, in the order of names."""
    numels = {p.name: p.numel for p in part.parameters}
    return [
        (".experts." in name, numel, numels[name.replace(".lora_A.", ".lora_B.")])
        for name, numel in numels.items()
        if ".lora_A." in name
    ]
