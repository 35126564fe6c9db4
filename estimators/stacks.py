"""The defaults that a stack, its versions and the device bring, settled into ``Settings``.

Order of precedence for every value: the user's workload or strategy option, the stack by version, the engine's own
default. ``Settings.origins`` records which it was.
"""

from __future__ import annotations

from functools import lru_cache

from estimators.cluster import Cluster
from estimators.knobs import Value, defaults
from estimators.model.spec import ModelSpec
from estimators.run import Settings
from estimators.strategy import Strategy
from estimators.workload import Workload

# Newest versions that the estimators were checked against; used where nothing is installed.
NEWEST = {"torch": "2.13.0", "transformers": "5.24.0", "accelerate": "1.15.0", "deepspeed": "0.19.8", "peft": "0.21.2"}

COMPUTE_DTYPE = {"bf16-mixed": "bf16", "fp16-mixed": "fp16", "bf16": "bf16", "fp16": "fp16", "fp32": "fp32"}


@lru_cache(maxsize=4096)
def settle(model: ModelSpec, cluster: Cluster, workload: Workload, strategy: Strategy, device: str = "cuda") -> Settings:
    """What this stack does with this workload under this strategy. Raises ``IllegalCombination`` where it cannot."""
    compute = COMPUTE_DTYPE[workload.precision]
    mixed = workload.precision.endswith("-mixed")
    engine = strategy.engine
    knobs: dict[str, Value] = {k: v for k, v in defaults(strategy.base).items() if v is not None}
    if engine == "deepspeed":
        stored, frozen, grad, reduce = compute, compute, compute, compute
        master = "fp32" if mixed else None
        knobs.setdefault("overlap_comm", strategy.stage == 3)
        knobs.setdefault("grad_accum_dtype", compute)
        knobs.setdefault("zero_init", False)
    else:
        stored = "fp32" if mixed else compute
        frozen = stored if workload.method == "full" else compute
        grad, master = stored, None
        reduce = "fp32" if engine in ("fsdp1", "fsdp2") and mixed else stored
    knobs.setdefault("gradient_as_bucket_view", False)
    knobs.setdefault("wrap", "blocks")
    knobs.setdefault("shard", min(cluster.gpus_per_node, cluster.ranks))
    knobs.setdefault("pin_memory", device == "cuda")
    knobs.setdefault("use_orig_params", True)
    knobs.setdefault("sync_each_batch", False)
    knobs.setdefault("reshard_after_forward", strategy.sharding != "shard-grad-op")
    knobs.update(strategy.options)
    optimizer = workload.optimizer or "adamw"
    return Settings(
        device=device,
        load_dtype=stored,
        param_dtype=workload.param_dtype or stored,
        frozen_dtype=frozen,
        compute_dtype=compute,
        grad_dtype=grad,
        reduce_dtype=workload.reduce_dtype or reduce,
        master_dtype=master,
        state_dtype=workload.state_dtype or ("fp32" if mixed else compute),
        adapter_dtype=workload.adapter_dtype or stored,
        autocast=mixed and engine in ("torch", "ddp"),
        optimizer=optimizer,
        optimizer_impl="fused",
        knobs=knobs,
        versions={**NEWEST, **dict(workload.versions)},
    )
