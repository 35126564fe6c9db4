"""What the optimizer moves (formula T.9), and what Muon computes besides (T.11)."""

from __future__ import annotations

from functools import lru_cache

from estimators.model.spec import ModelSpec
from estimators.optimizers import is_muon_matrix
from estimators.run import Run
from estimators.workload import DTYPE_BYTES

NEWTON_SCHULZ = 5  # iterations: torch.optim.Muon, deepspeed/runtime/zero/muon/original_muon.py

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


def orthogonalisation(rows: int, columns: int, gram: bool = False) -> int:
    """T.11: FLOPs that orthogonalise one matrix, n the shorter side and m the longer.

    Newton-Schulz, 5 x (X Xt, A A, B X): 5 (4 n^2 m + 2 n^3). DeepSpeed iterates on the Gram matrix where m > n, with
    one restart: 8 n^2 m + 28 n^3.

    >>> orthogonalisation(4096, 4096) / 1e9, orthogonalisation(4096, 14336, gram=True) / 1e9
    (2061.58430208, 3848.290697216)
    """
    n, m = min(rows, columns), max(rows, columns)
    if gram and m > n:
        return 8 * n * n * m + 28 * n**3
    return NEWTON_SCHULZ * (4 * n * n * m + 2 * n**3)


def muon_flops(run: Run) -> float:
    """T.11 of one step on this rank; 0 under any other optimizer.

    Every rank of DDP computes all matrices. DeepSpeed's ranks compute those of their partition (stage_1_and_2.py) or
    take turns (stage3.py). torch's Muon over FSDP2's shards is taken to compute whole matrices everywhere: the slow side.
    """
    settings = run.settings
    if settings.optimizer != "muon":
        return 0.0
    deepspeed = run.strategy.engine == "deepspeed"
    whole = _all_matrices(run.model, settings.optimizer_impl, deepspeed)
    return whole / (run.shards if deepspeed and run.strategy.is_sharded else 1)


@lru_cache(maxsize=256)
def _all_matrices(model: ModelSpec, impl: str, gram: bool) -> int:
    head, total = f"{model.head}.weight", 0
    for part in model.parts:
        for p in part.parameters:
            if p.trainable and len(p.shape) >= 2 and is_muon_matrix(p.shape, p.kind, p.name == head, impl):
                stacked = p.numel // (p.shape[-1] * p.shape[-2])
                total += part.count * stacked * orthogonalisation(p.shape[-2], p.shape[-1], gram)
    return total
