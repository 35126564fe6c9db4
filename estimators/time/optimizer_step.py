"""Bytes that the optimizer moves: formula T.9."""

from __future__ import annotations

from estimators.run import Run
from estimators.workload import DTYPE_BYTES

STATES = {"adamw": 2, "adamw-fused": 2, "adamw-8bit": 2, "paged-adamw": 2, "paged-adamw-8bit": 2, "adafactor": 0,
          "lion": 1, "sgd": 0, "sgd-momentum": 1, "muon": 1}  # fmt: skip


def bytes_per_parameter(run: Run) -> float:
    """T.9: parameter and states read and written, gradient read; twice more the gradient for clipping.

    fp32 Adam: 8 + 4 + 16 = 28, + 8 for the norm and the scaling of gradients.
    """
    settings = run.settings
    stored, grad = DTYPE_BYTES[settings.param_dtype], DTYPE_BYTES[settings.grad_dtype]
    state = 1.0 if "8bit" in settings.optimizer else float(DTYPE_BYTES.get(settings.state_dtype, 4))
    master = DTYPE_BYTES[settings.master_dtype] if settings.master_dtype else 0
    return 2 * stored + 3 * grad + 2 * master + 2 * state * STATES.get(settings.optimizer, 2)


def owned(run: Run) -> int:
    """Parameters that one rank updates: those that train, over the ranks that share them."""
    return -(-run.model.num_trainable // run.shards)


def step_bytes(run: Run) -> float:
    """Bytes of one fused update on this rank; none where it happens on the host."""
    offloaded = run.strategy.optimizer or (run.strategy.engine in ("fsdp1", "fsdp2") and run.strategy.params)
    return 0.0 if offloaded else owned(run) * bytes_per_parameter(run)


def is_fused(run: Run) -> bool:
    """Whether one kernel updates a parameter, rather than a chain of operations over lists of them."""
    return run.settings.optimizer_impl not in ("foreach", "single")
