"""Bytes of host RAM that saving and merging need."""

from __future__ import annotations

from estimators.run import Run
from estimators.workload import DTYPE_BYTES


def whole_bytes(run: Run) -> int:
    """A gathered checkpoint: every parameter in the dtype in which the engine stores it; of adapters, those alone."""
    dtype = run.settings.compute_dtype if run.strategy.engine == "deepspeed" else run.settings.param_dtype
    if run.workload.has_adapters:
        return sum(p.numel for _, p in run.model.named_parameters() if p.trainable) * DTYPE_BYTES[dtype]
    return run.model.num_params * DTYPE_BYTES[dtype]


def merged_bytes(run: Run) -> int:
    """Merging parts without a GPU: the parts, and the merged fp32 model."""
    return run.model.num_params * DTYPE_BYTES["fp32"] * 2
