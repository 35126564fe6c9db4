"""The keys of a DeepSpeed JSON, as tables. Source: deepspeed 0.19.8, runtime/config.py, runtime/zero/config.py,
runtime/zero/offload_config.py, runtime/precision_config.py; earlier versions where a key is gone.
"""

from __future__ import annotations

from collections.abc import Mapping

from estimators.knobs import KNOBS, ZERO0, Knob
from estimators.knobs import ZERO as ZERO_STAGES
from estimators.readers.names import names

# Knobs under zero_optimization by their key there; the dtype of accumulation and offload_* have their own readers.
ZERO_KNOBS: Mapping[str, Knob] = {
    knob.key: knob for knob in KNOBS if set(knob.strategies) & {*ZERO0, *ZERO_STAGES} and "." not in knob.key
}
OFFLOAD_KNOBS: Mapping[str, Mapping[str, Knob]] = {
    block: {knob.key.partition(".")[2]: knob for knob in KNOBS if knob.key.startswith(block + ".")}
    for block in ("offload_optimizer", "offload_param")
}

# Other spellings: the field's own name (pydantic populate_by_name) and the deprecated one.
SPELLINGS: Mapping[str, tuple[str, ...]] = {
    key: (key.removeprefix("stage3_"),) for key in ZERO_KNOBS if key.startswith("stage3_")
} | {
    "stage3_gather_16bit_weights_on_model_save": (
        "gather_16bit_weights_on_model_save", "stage3_gather_fp16_weights_on_model_save",
    ),
}  # fmt: skip
DEPRECATED_OFFLOAD = {"cpu_offload": "offload_optimizer", "cpu_offload_param": "offload_param"}

# Keys with an effect on memory that nothing here estimates, and the value at which they have none.
NOT_ESTIMATED: Mapping[str, object] = {
    "zenflow": None, "stage3_allgather_sequential": False, "allgather_sequential": False, "parameter_alignment": False,
    "memory_efficient_linear": True, "legacy_stage1": False,
}  # fmt: skip
ZERO_OTHER = names(
    """allgather_partitions use_multi_rank_bucket_allreduce compute_grad_norm load_from_fp32_weights elastic_checkpoint
    ignore_unused_parameters pipeline_loading_checkpoint override_module_apply log_trace_cache_warnings
    enable_sanity_checks save_muon_momentum_buffer_in_memory leaf_module use_all_reduce_for_fetch_params
    stage3_use_all_reduce_for_fetch_params cpu_offload_use_pin_memory mics_hierarchical_params_gather
    zeropp_loco_param"""
)
OFFLOAD_OTHER = {
    "offload_optimizer": frozenset(("fast_init", "super_offload", "cpuadam_cores_perc", "pipeline", "buffer_size")),
    "offload_param": frozenset(("pipeline_read", "pipeline_write")),
}
TOP_OTHER = names(
    """steps_per_print scheduler prescale_gradients gradient_predivide_factor gradient_allreduce_op
    disable_allgather dump_state disable_python_gc wall_clock_breakdown memory_breakdown flops_profiler comms_logger
    monitor_config tensorboard wandb csv_monitor comet checkpoint dataloader_drop_last data_efficiency autotuning
    hybrid_engine pipeline vocabulary_size log_level timers zero_allow_untested_optimizer zero_force_ds_cpu_optimizer
    seq_parallel_communication_data_type managed_gradient_accumulation use_data_before_expert_parallelism
    datastates compile expert_parallel weight_quantization curriculum_learning eigenvalue nebula sparse_gradients
    progressive_layer_drop quantize_training compression_training sparse_attention graph_harvesting elasticity amp
    gradient_accumulation_dtype zero_optimization_use_apex_master_weights inference msamp fp8 torch_autocast
    communication_data_type bfloat16 sequence_parallel_size tensor_parallel optimizer data_types aio
    activation_checkpointing"""
)

# Blocks that deepspeed 0.19.8 refuses (config.py, _REMOVED_TOP_LEVEL_CONFIG_KEYS and _REMOVED_ZERO_CONFIG_KEYS).
REMOVED = names(
    """nebula compression_training amp quantize_training sparse_gradients eigenvalue sparse_attention elasticity
    graph_harvesting curriculum_learning progressive_layer_drop"""
)
REMOVED_ZERO = frozenset(("mics_shard_size", "mics_hierarchical_params_gather", "zeropp_loco_param"))

# config.py, DtypeEnum.
DTYPES: Mapping[str, str] = {
    "torch.float16": "fp16", "fp16": "fp16", "float16": "fp16", "half": "fp16",
    "torch.float32": "fp32", "fp32": "fp32", "float32": "fp32", "float": "fp32",
    "torch.bfloat16": "bf16", "bf16": "bf16", "bfloat16": "bf16",
}  # fmt: skip

# optimizer.type -> the workload's optimizer. DeepSpeed's own names are read in any case (engine.py,
# _configure_basic_optimizer): its Adam is fused, or runs on the CPU when offloaded.
OPTIMIZERS: Mapping[str, str] = {
    "adam": "adamw-fused", "adamw": "adamw-fused", "lion": "lion", "muon": "muon",
    "muadam": "adamw", "muadamw": "adamw", "musgd": "sgd",
}  # fmt: skip
TORCH_OPTIMIZERS: Mapping[str, str] = {"SGD": "sgd", "Adafactor": "adafactor"}
ONE_BIT = frozenset(("onebitadam", "onebitlamb", "zerooneadam"))
UNMODELLED_OPTIMIZERS = names("adagrad lamb Adagrad Adadelta Adamax ASGD NAdam RAdam RMSprop Rprop LBFGS SparseAdam")
