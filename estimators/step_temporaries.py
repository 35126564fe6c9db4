"""What optimizers allocate for the length of a step, beside states and gradients.

Sources (torch 2.13): torch/optim/adam.py ``_multi_tensor_adam`` (``exp_avg_sq_sqrt``: one tensor like every second moment,
all at once), ``_single_tensor_adam`` (the root and the quotient, one parameter at a time); torch/optim/_muon.py
``_zeropower_via_newtonschulz``; transformers/optimization.py ``Adafactor.step``. Fused kernels (torch, bitsandbytes,
DeepSpeed) work in place. Gradient clipping scales in place and keeps a scalar a tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod

from estimators.devices import DEVICES
from estimators.model.spec import ModelSpec, Parameter
from estimators.result import Term
from estimators.run import Run
from estimators.units import ceil_div
from estimators.workload import DTYPE_BYTES

FP32, BF16 = 4, 2


def step_temporaries(run: Run, held: Sequence[Term]) -> tuple[Term, ...]:
    """Temporaries of the largest moment of ``optimizer.step`` (foreach AdamW: F.6); ``held``: what the engine holds then."""
    settings = run.settings
    on_host = run.strategy.params == "cpu" and DEVICES[settings.device].separate_host
    if run.strategy.engine == "deepspeed" or on_host or run.workload.optimizer_in_backward:
        return ()
    name, impl = settings.optimizer, settings.optimizer_impl
    if name in ("adamw", "adamw-fused") and impl == "foreach":
        states = sum(t.bytes for t in held if t.category == "optimizer" and t.place == "gpu")
        return (
            Term(
                "roots of second moments", "temporaries", states // 2, "foreach AdamW: one tensor like each exp_avg_sq"
            ),
        )
    largest = _largest(run)
    if name in ("adamw", "adamw-fused") and impl == "single":
        size = 2 * largest * DTYPE_BYTES[settings.state_dtype]
        return (Term("root and quotient", "temporaries", size, "one parameter at a time: sqrt, and sqrt / correction"),)
    if name == "adafactor" and impl == "hf":
        casts = 2 if settings.param_dtype != "fp32" else 0
        return (
            Term(
                "update in fp32",
                "temporaries",
                (2 + casts) * largest * FP32,
                "squares and update of the largest tensor",
            ),
        )
    if name == "muon":
        return (
            Term("orthogonalisation", "temporaries", _muon(run), "update, three bf16 copies and three Gram matrices"),
        )
    return ()


def _largest(run: Run) -> int:
    """Elements of the largest trainable tensor as the optimizer sees it."""
    if run.strategy.engine == "fsdp1":
        from estimators.engines.sharding.flat import largest_slice, plan_of

        return largest_slice(plan_of(run))
    return largest_shard(run.model, run.shards)


@lru_cache(maxsize=4096)
def largest_shard(model: ModelSpec, shards: int) -> int:
    """Elements of the largest trainable tensor as a rank steps it: rows dealt in chunks."""

    def local(p: Parameter) -> int:
        return ceil_div(p.shape[0] if p.shape else 1, shards) * prod(p.shape[1:])

    return max((local(p) for part in model.parts for p in part.parameters if p.trainable), default=0)


def _muon(run: Run) -> int:
    """Of the largest matrix: the update in the dtype of its gradient, X and two products in bf16, Gram matrices."""
    matrices = [
        p.shape
        for part in run.model.parts
        for p in part.parameters
        if p.trainable and len(p.shape) == 2 and part.is_block
    ]
    if not matrices:
        return 0
    rows, columns = max(matrices, key=prod)
    grad = DTYPE_BYTES[run.settings.grad_dtype]
    return rows * columns * (grad + 3 * BF16) + 3 * BF16 * min(rows, columns) ** 2
