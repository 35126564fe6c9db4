"""Tables for the rules of a DeepSpeed JSON. Source: deepspeed 0.19.8 runtime/config.py, precision_config.py."""

from __future__ import annotations

from estimators.knobs import KNOBS
from estimators.readers.names import names

# Keys that hold a boolean inside a block with a schema; pydantic turns text into one there.
BOOLEANS = frozenset(knob.key.rpartition(".")[2] for knob in KNOBS if knob.kind == "bool") | names(
    """enabled auto_cast overlap_comm pin_memory fast_init pipeline_read pipeline_write elastic_checkpoint
    allgather_partitions load_from_fp32_weights cpu_offload cpu_offload_param legacy_stage1 ignore_unused_parameters
    stage3_gather_16bit_weights_on_model_save gather_16bit_weights_on_model_save zero_quantized_weights
    stage3_gather_fp16_weights_on_model_save bf16_master_weights_and_grads fp16_master_weights_and_grads
    bf16_optimizer_states"""
)
# Read as they stand: text is true whatever it says.
TOP_BOOLEANS = names(
    """zero_allow_untested_optimizer zero_force_ds_cpu_optimizer prescale_gradients wall_clock_breakdown
    memory_breakdown dump_state disable_allgather dataloader_drop_last"""
)
PRECISION_KEYS = {
    "fp16": names(
        """enabled auto_cast loss_scale initial_scale_power loss_scale_window hysteresis consecutive_hysteresis
        min_loss_scale fp16_master_weights_and_grads"""
    ),
    "bf16": names(
        "enabled immediate_grad_update check_grad_overflow bf16_master_weights_and_grads bf16_optimizer_states"
    ),
}
# zero/utils.py, ZERO_SUPPORTED_OPTIMIZERS, by the names of the JSON.
TESTED = names("adam adamw adagrad lion muon")
# Blocks whose experts DeepSpeed 0.19 treats as leaves by itself: zero/leaf_module_config.py.
BUILT_IN_LEAVES = ("Mixtral", "Qwen2Moe", "Qwen3Moe")
