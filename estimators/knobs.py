"""Every engine setting that changes what an engine holds: one table, read by strategies, readers and reports.

``key`` is the setting's name in the engine's own configuration. Defaults are the engine's (DeepSpeed 0.19.8, torch
2.13); a stack may bring others (``estimators.stacks``). Sources: deepspeed/runtime/zero/config.py,
deepspeed/runtime/zero/offload_config.py, torch/distributed/fsdp, torch/nn/parallel/distributed.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from estimators.errors import InputError, short
from estimators.values import dataclass

Value = bool | int | float | str

ZERO12 = ("zero1", "zero2")
ZERO3 = ("zero3",)
ZERO = ZERO12 + ZERO3
ZERO0 = ("zero0",)
FSDP2 = ("fsdp-full-shard", "fsdp-shard-grad-op", "fsdp-hybrid-shard")
FSDP1 = ("fsdp1-full-shard", "fsdp1-shard-grad-op", "fsdp1-hybrid-shard", "fsdp1-no-shard")
DDP = ("ddp",)


@dataclass(frozen=True, slots=True)
class Knob:
    """A setting: its type (``bool``, ``int``, ``float``, ``bool|int`` or a tuple of words), default, range, effect.

    ``since`` and ``until`` gate it by the engine's version: first version that has it, first that has it no more.
    """

    name: str
    strategies: tuple[str, ...]
    kind: str | tuple[str, ...]
    default: Value | None
    key: str
    effect: str
    minimum: float = 0
    maximum: float = 1e15
    since: str | None = None
    until: str | None = None
    aliases: tuple[str, ...] = ()

    def parse(self, text: str) -> Value:
        """Text of a strategy's option -> value; raises ``InputError``."""
        return self.check(_literal(text))

    def check(self, value: object) -> Value:
        """A value of the right type inside the range, or ``InputError``."""
        if isinstance(self.kind, tuple):
            if value not in self.kind:
                raise InputError(f"option {self.name}: {short(value)} is not one of {', '.join(self.kind)}")
            return str(value)
        if isinstance(value, bool):
            if "bool" in self.kind:
                return value
        elif isinstance(value, int | float) and value == value and abs(value) != float("inf"):
            if self.kind == "float" or ("int" in self.kind and float(value).is_integer()):
                if not self.minimum <= value <= self.maximum:
                    raise InputError(f"option {self.name}: {value:g} is outside {self.minimum:g} to {self.maximum:g}")
                return float(value) if self.kind == "float" else int(value)
        words = {"bool": "true or false", "int": "a whole number", "float": "a number"}
        wanted = " or ".join(words[part] for part in self.kind.split("|"))
        raise InputError(f"option {self.name}: {short(value)} is not {wanted}")


def _literal(text: str) -> object:
    lowered = text.lower()
    if lowered in ("true", "false"):
        return lowered == "true"
    try:
        return int(lowered.replace("_", ""))
    except ValueError:
        pass
    try:
        return float(lowered)
    except ValueError:
        return lowered


KNOBS: tuple[Knob, ...] = (
    # DeepSpeed, every stage
    Knob("reduce_bucket_size", ZERO, "int", 500_000_000, "reduce_bucket_size",
         "elements of the gradient bucket; persistent at stage 3, allocated in backward at stages 1 and 2", 1),
    Knob("overlap_comm", ZERO, "bool", None, "overlap_comm",
         "reduce while backward runs: a second bucket; default true at stage 3 only"),
    Knob("contiguous_gradients", ZERO, "bool", True, "contiguous_gradients", "copy gradients into the bucket"),
    Knob("grad_accum_dtype", ZERO0 + ZERO, ("bf16", "fp16", "fp32"), None, "data_types.grad_accum_dtype",
         "dtype in which gradients accumulate; default that of the model"),
    Knob("pin_memory", ZERO + FSDP2 + FSDP1, "bool", None, "offload_*.pin_memory",
         "page-locked host memory, whose blocks round up to powers of two"),
    Knob("ratio", ZERO3, "float", 1.0, "offload_optimizer.ratio", "share of the optimizer that is offloaded", 0, 1),
    Knob("zero_init", ZERO3, "bool", None, "zero.Init", "parameters are partitioned while the model is built"),
    Knob("gather_16bit_on_save", ZERO3, "bool", None, "stage3_gather_16bit_weights_on_model_save",
         "gather the whole 16-bit model on one rank's host at save"),
    # stages 1 and 2
    Knob("allgather_bucket_size", ZERO12, "int", 500_000_000, "allgather_bucket_size",
         "elements gathered at once after the step", 1),
    Knob("round_robin_gradients", ZERO12, "bool", False, "round_robin_gradients",
         "parameters are dealt to ranks in turn"),
    Knob("reduce_scatter", ZERO12, "bool", True, "reduce_scatter", "reduce-scatter in place of all-reduce"),
    # stage 3
    Knob("sub_group_size", ZERO3, "int", 1_000_000_000, "sub_group_size",
         "elements that the optimizer steps through at once", 1),
    Knob("max_live_parameters", ZERO3, "int", 1_000_000_000, "stage3_max_live_parameters",
         "elements that may stay gathered"),
    Knob("max_reuse_distance", ZERO3, "int", 1_000_000_000, "stage3_max_reuse_distance",
         "a parameter needed again within so many elements is not released"),
    Knob("prefetch_bucket_size", ZERO3, "int", 50_000_000, "stage3_prefetch_bucket_size",
         "elements gathered ahead of use; held twice while they are split"),
    Knob("param_persistence_threshold", ZERO3, "int", 100_000, "stage3_param_persistence_threshold",
         "parameters with fewer elements stay whole on every rank"),
    Knob("model_persistence_threshold", ZERO3, "int", 2**63 - 1, "stage3_model_persistence_threshold",
         "elements that may persist in all", 0, 2**63 - 1),
    Knob("module_granularity_threshold", ZERO3, "int", 0, "stage3_module_granularity_threshold",
         "modules finer than this are gathered as one"),
    Knob("hpz", ZERO3, "int", 1, "zero_hpz_partition_size",
         "ZeRO++: a second 16-bit shard inside a group of so many ranks", 1, 65536, since="0.10.0",
         aliases=("hpz_partition_size", "zero_hpz_partition_size")),
    Knob("quantized_weights", ZERO3, "bool", False, "zero_quantized_weights",
         "ZeRO++: int8 all-gather", since="0.10.0", aliases=("zero_quantized_weights",)),
    Knob("quantized_nontrainable_weights", ZERO3, "bool", False, "zero_quantized_nontrainable_weights",
         "int8 storage of frozen parameters", since="0.10.3"),
    Knob("quantized_gradients", ZERO3, "bool", False, "zero_quantized_gradients",
         "ZeRO++: int4 gradient exchange", since="0.10.0", aliases=("zero_quantized_gradients",)),
    Knob("mics", ZERO3, "int", None, "mics_shard_size",
         "MiCS: everything is sharded inside a group of so many ranks", 1, 65536, since="0.8.1", until="0.19.7",
         aliases=("mics_shard_size",)),
    # buffers of NVMe offload
    Knob("param_buffer_count", ZERO3, "int", 5, "offload_param.buffer_count", "host buffers of parameter swap", 1),
    Knob("param_buffer_size", ZERO3, "int", 100_000_000, "offload_param.buffer_size",
         "elements of each; the largest parameter must fit", 1),
    Knob("max_in_cpu", ZERO3, "int", 1_000_000_000, "offload_param.max_in_cpu",
         "parameter elements kept in host RAM with NVMe offload"),
    Knob("optimizer_buffer_count", ZERO3, "int", 4, "offload_optimizer.buffer_count", "host buffers of state swap", 1),
    Knob("pipeline_read", ZERO3, "bool", False, "offload_optimizer.pipeline_read", "read the next while stepping"),
    Knob("pipeline_write", ZERO3, "bool", False, "offload_optimizer.pipeline_write", "write the last while stepping"),
    # FSDP
    Knob("shard", ("fsdp-hybrid-shard", "fsdp1-hybrid-shard"), "int", None, "device_mesh",
         "ranks of one shard group; default the GPUs of a node", 1, 65536),
    Knob("reshard_after_forward", ("fsdp-full-shard",), "bool|int", None, "reshard_after_forward",
         "an int keeps the parameters sharded over so many ranks between forward and backward", 2, 65536),
    Knob("wrap", FSDP2 + FSDP1, ("blocks", "blocks+embedding", "blocks+embedding+head", "none"), None, "auto_wrap_policy",
         "which modules are units of their own; what is left belongs to the root unit"),
    Knob("forward_prefetch", FSDP2 + FSDP1, "int", 0, "set_modules_to_forward_prefetch / forward_prefetch",
         "units gathered ahead in forward beyond the implicit one", 0, 64),
    Knob("backward_prefetch", FSDP2 + FSDP1, ("pre", "post", "none"), "pre", "backward_prefetch",
         "when the next unit is gathered in backward"),
    Knob("limit_all_gathers", FSDP1, "bool", True, "limit_all_gathers", 
         "at most two gathered units in flight: bounds the reserve, not allocated bytes"),
    Knob("use_orig_params", FSDP1, "bool", None, "use_orig_params", "keep the original parameters as views"),
    Knob("sync_each_batch", FSDP2 + FSDP1 + DDP, "bool", None, "sync_each_batch",
         "reduce in every micro-step instead of holding unsharded gradients (no_sync)"),
    # DDP
    Knob("gradient_as_bucket_view", DDP, "bool", None, "gradient_as_bucket_view",
         "gradients are views of the buckets: no second copy"),
    Knob("bucket_cap_mb", DDP, "int", 25, "bucket_cap_mb",
         "MiB of a gradient bucket: how buckets are cut, not their sum", 1, 10**6),
    Knob("static_graph", DDP, "bool", False, "static_graph", "the graph never changes: two int32 maps of used parameters"),
    Knob("find_unused_parameters", DDP, "bool", False, "find_unused_parameters", "mark unused parameters as ready"),
)  # fmt: skip


def defaults(strategy_name: str) -> Mapping[str, Value | None]:
    """The engine's own default of each knob of a strategy."""
    return {knob.name: knob.default for knob in KNOBS if strategy_name in knob.strategies}
