"""Naive estimates to set beside ours: what a reader would do with a paper and a pocket calculator.

``states``: parameters, gradients and optimizer states as the ZeRO paper divides them (arXiv 1910.02054, section 5).
``states and activations``: and Korthikanti's activations (arXiv 2205.05198): sbh (34 + 5 a s / h) a layer, without the
second term for fused attention, 2 sbh where a layer is checkpointed.
"""

from __future__ import annotations

from estimators.run import Run
from estimators.units import GIB
from estimators.workload import DTYPE_BYTES


def states(run: Run) -> float:
    """GiB of states on one GPU."""
    work, ranks, stage = run.workload, run.ranks, _stage(run)
    pure = work.precision in ("bf16", "fp16")
    weight = 4 if work.precision == "fp32" else 2
    trained = run.model.num_trainable
    stored = sum(run.bytes_of(p) * part.count for part in run.model.parts for p in part.parameters)
    params = stored if work.method == "qlora" else weight * run.model.num_params
    adam = 2 * DTYPE_BYTES[work.state_dtype or ("bf16" if pure else "fp32")]
    master = 0 if pure or work.precision == "fp32" else 4
    total = params / (ranks if stage >= 3 else 1)
    total += weight * trained / (ranks if stage >= 2 else 1)
    total += 0 if run.strategy.optimizer else (adam + master) * trained / (ranks if stage >= 1 else 1)
    return total / GIB


def states_and_activations(run: Run) -> float:
    """GiB of states, and of every layer's activations."""
    work, config = run.workload, run.model.config
    width = int(_first(config, "hidden_size", "n_embd", "d_model") or 0)
    heads = int(_first(config, "num_attention_heads", "n_head", "n_heads") or 1)
    layers = sum(part.count for part in run.model.blocks)
    tokens = work.micro_batch * work.seq_len
    if work.checkpointing != "none":
        each = 2.0 * tokens * width
    else:
        each = tokens * (34.0 * width + (5.0 * heads * work.seq_len if work.attention == "eager" else 0.0))
    return states(run) + layers * each / GIB


def _stage(run: Run) -> int:
    base, sharding = run.strategy.base, run.strategy.sharding
    if base.startswith("zero"):
        return int(base[-1])
    return {"full-shard": 3, "hybrid-shard": 3, "shard-grad-op": 2}.get(sharding or "", 0)


def _first(config: object, *keys: str) -> object:
    return next((config[k] for k in keys if config.get(k)), None)  # type: ignore[attr-defined, index]


BASELINES = {"states": states, "states and activations": states_and_activations}
