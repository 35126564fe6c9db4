"""Every legal strategy x stack x method on a small model: the runs that the proofs go over."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from estimators.errors import AdvisorError
from estimators.memory import resolve
from estimators.run import Run
from estimators.strategy import DEFAULT_NAMES, OTHER_NAMES
from estimators.workload import METHODS, STACKS

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256, "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}  # fmt: skip
STRATEGIES = ("single", *DEFAULT_NAMES, *OTHER_NAMES)
CLUSTER, ONE = "2x4xA100-80GB", "A100-80GB"
# Beyond the names: every knob that an engine has, and precisions, once each.
KNOBS = (
    "zero1:reduce_bucket_size=50000000,allgather_bucket_size=40000000,overlap_comm=true,round_robin_gradients=true",
    "zero2:contiguous_gradients=false,reduce_scatter=false,grad_accum_dtype=fp32",
    "zero2:pin_memory=false+optimizer@cpu",
    "zero3:sub_group_size=100000000,max_live_parameters=5,max_reuse_distance=6,prefetch_bucket_size=7",
    "zero3:param_persistence_threshold=8,model_persistence_threshold=9,module_granularity_threshold=10",
    "zero3:hpz=4,quantized_weights=true,quantized_gradients=true,quantized_nontrainable_weights=true",
    "zero3:gather_16bit_on_save=false,zero_init=true",
    "zero3:ratio=0.5+optimizer@cpu",
    "zero3:optimizer_buffer_count=7,pipeline_read=true,pipeline_write=true+optimizer@nvme",
    "zero3:param_buffer_count=7,param_buffer_size=50000000,max_in_cpu=3+optimizer@cpu+params@nvme",
    "fsdp-hybrid-shard:shard=2", "fsdp-full-shard:sync_each_batch=true",
    "fsdp1-full-shard:forward_prefetch=1,backward_prefetch=post,use_orig_params=true",
    "ddp:bucket_cap_mb=100,static_graph=true,find_unused_parameters=true,sync_each_batch=true",
)  # fmt: skip
PRECISIONS = ("bf16-mixed", "fp16-mixed", "bf16", "fp16", "fp32")


def cluster_of(strategy: str) -> str:
    return ONE if strategy == "single" else CLUSTER


@lru_cache(maxsize=1)
def legal() -> tuple[Run, ...]:
    """All of them; what the estimators refuse is not legal."""
    return tuple(run for run in map(_resolved, _asked()) if run is not None)


def _asked() -> Iterator[tuple[str, dict[str, Any]]]:
    for stack in STACKS:
        for strategy in STRATEGIES:
            for method in METHODS:
                yield strategy, {"stack": stack, "method": method}
        for strategy in KNOBS:
            yield strategy, {"stack": stack}
        for strategy in STRATEGIES:
            for precision in PRECISIONS:
                yield strategy, {"stack": stack, "precision": precision, "grad_accum": 3, "micro_batch": 2}


def _resolved(asked: tuple[str, dict[str, Any]]) -> Run | None:
    strategy, fields = asked
    try:
        return resolve(LLAMA, cluster_of(strategy), strategy, **fields)
    except AdvisorError:
        return None


def name_of(run: Run) -> str:
    work = run.workload
    return f"{run.strategy.name}, {work.stack}, {work.method}, {work.precision}, {work.micro_batch}x{work.grad_accum}"


def of(*stacks: str, engine: str | None = None) -> list[Run]:
    """Runs of some stacks, and of one engine."""
    wanted = stacks or STACKS
    return [r for r in legal() if r.workload.stack in wanted and engine in (None, r.strategy.engine)]
