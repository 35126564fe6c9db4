"""The names of TrainingArguments, as tables. From transformers 5.24 training_args.py and its earlier versions."""

from __future__ import annotations

from collections.abc import Mapping

from estimators.readers.names import names

# optim -> the workload's optimizer; the rest of OptimizerNames is known and not modelled.
OPTIMIZERS: Mapping[str, str] = {
    "adamw_torch": "adamw", "adamw_hf": "adamw", "adamw_torch_fused": "adamw-fused", "adamw_apex_fused": "adamw-fused",
    "adamw_bnb_8bit": "adamw-8bit", "adamw_8bit": "adamw-8bit", "paged_adamw_32bit": "paged-adamw",
    "paged_adamw": "paged-adamw", "paged_adamw_8bit": "paged-adamw-8bit", "adafactor": "adafactor",
    "lion_32bit": "lion", "sgd": "sgd",
}  # fmt: skip
OTHER_OPTIMIZERS = names(
    """adamw_torch_xla adamw_torch_npu_fused adamw_anyprecision adamw_torch_4bit adamw_torch_8bit ademamix adagrad
    ademamix_8bit lion_8bit paged_ademamix_32bit paged_ademamix_8bit paged_lion_32bit paged_lion_8bit rmsprop
    rmsprop_bnb rmsprop_bnb_8bit rmsprop_bnb_32bit galore_adamw galore_adamw_8bit galore_adafactor
    galore_adamw_layerwise galore_adamw_8bit_layerwise galore_adafactor_layerwise lomo adalomo grokadamw
    schedule_free_radam schedule_free_adamw schedule_free_sgd apollo_adamw apollo_adamw_layerwise
    stable_adamw"""
)

# Length of a sequence, by the name that each superset gives it.
SEQ_LENS = ("max_length", "max_seq_length", "max_seq_len", "model_max_length", "cutoff_len", "sequence_len")

DDP = {
    "ddp_bucket_cap_mb": "bucket_cap_mb", "ddp_static_graph": "static_graph",
    "ddp_find_unused_parameters": "find_unused_parameters",
}  # fmt: skip

# A key of this set says whose superset of TrainingArguments the file is.
STACK_MARKS: Mapping[str, frozenset[str]] = {
    "llamafactory": frozenset(("finetuning_type", "cutoff_len", "disable_gradient_checkpointing")),
    "axolotl": frozenset(("base_model", "micro_batch_size", "sequence_len")),
    "swift": frozenset(("tuner_type", "train_type", "tuner_backend")),
    "trl": names(
        """max_length max_seq_length packing eval_packing padding_free dataset_text_field completion_only_loss
        assistant_only_loss activation_offloading max_prompt_length max_completion_length"""
    ),
}

# Defaults of a whole file, by stack: workload field -> (key, value). trl 1.16 trainer/base_config.py, sft_config.py.
_COMMON = {"micro_batch": ("per_device_train_batch_size", 8), "grad_accum": ("gradient_accumulation_steps", 1),
           "optimizer": ("optim", "adamw-fused")}  # fmt: skip
DEFAULTS: Mapping[str, Mapping[str, tuple[str, object]]] = {
    "trainer": {**_COMMON, "checkpointing": ("activation_checkpointing", "none"), "precision": ("bf16", "fp32")},
    "trl": {**_COMMON, "checkpointing": ("gradient_checkpointing", "full"), "precision": ("bf16", "bf16-mixed"),
            "seq_len": ("max_length", 1024)},
}  # fmt: skip
WHOLE = ("output_dir", "per_device_train_batch_size")

# Not of TrainingArguments, and they decide the memory: the flag to give instead.
METHOD_KEYS: Mapping[str, tuple[object, ...]] = {  # values that mean full fine-tuning
    "finetuning_type": ("full",), "tuner_type": ("full",), "train_type": ("full",), "adapter": (None, ""),
    "use_peft": (False,), "load_in_4bit": (False,), "load_in_8bit": (False,), "quantization_bit": (None,),
}  # fmt: skip
ELSEWHERE: Mapping[str, str] = {
    "micro_batch_size": "--micro-batch", "optimizer": "--optimizer", "lora_r": "--lora-rank",
    "lora_rank": "--lora-rank",
    "lora_target": "--lora-targets", "lora_target_modules": "--lora-targets", "attn_implementation": "--attention",
    "flash_attn": "--attention", "flash_attention": "--attention", "attn_impl": "--attention",
    "lora_modules_to_save": "--modules-to-save", "dtype": "--param-dtype", "torch_dtype": "--param-dtype",
    "pure_bf16": "--precision bf16", "freeze_vit": "--method freeze",
}  # fmt: skip

FSDP_UNREAD = frozenset(("xla_fsdp_v2", "xla_fsdp_settings", "xla_fsdp_grad_ckpt"))

# TrainingArguments that change no estimate. The last lines are names that earlier versions had.
OTHER = names(
    """output_dir num_train_epochs max_steps learning_rate lr_scheduler_type lr_scheduler_kwargs warmup_steps
    weight_decay adam_beta1 adam_beta2 adam_epsilon optim_target_modules average_tokens_across_devices
    label_smoothing_factor bf16_full_eval fp16_full_eval tf32 liger_kernel_config use_cache neftune_noise_alpha
    torch_empty_cache_steps logging_strategy logging_steps logging_first_step log_on_each_node
    logging_nan_inf_filter include_num_input_tokens_seen log_level log_level_replica disable_tqdm report_to run_name
    project trackio_space_id trackio_bucket_id trackio_static_space_id eval_strategy eval_steps eval_delay
    per_device_eval_batch_size prediction_loss_only eval_on_start eval_do_concat_batches eval_use_gather_object
    eval_accumulation_steps include_for_metrics batch_eval_metrics save_only_model save_strategy save_steps
    save_on_each_node save_total_limit enable_jit_checkpoint push_to_hub hub_token hub_private_repo hub_model_id
    hub_strategy hub_always_push hub_revision load_best_model_at_end metric_for_best_model greater_is_better
    ignore_data_skip restore_callback_states_from_checkpoint full_determinism seed data_seed use_cpu
    dataloader_drop_last dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers
    dataloader_prefetch_factor dataloader_multiprocessing_context dataloader_in_order remove_unused_columns
    label_names train_sampling_strategy length_column_name ddp_broadcast_buffers ddp_backend ddp_timeout debug
    skip_memory_metrics do_train do_eval do_predict resume_from_checkpoint local_rank fsdp_config optim_args
    accelerator_config parallelism_config auto_find_batch_size overwrite_output_dir evaluation_strategy warmup_ratio
    logging_dir save_safetensors no_cuda use_mps_device jit_mode_eval use_ipex fp16_opt_level half_precision_backend
    fp16_backend tpu_num_cores tpu_metrics_debug past_index group_by_length fsdp_min_num_params
    fsdp_transformer_layer_cls_to_wrap include_inputs_for_metrics push_to_hub_model_id push_to_hub_organization
    push_to_hub_token mp_parameters torchdynamo ray_scope split_batches dispatch_batches include_tokens_per_second
    sharded_ddp adafactor bf16_backend"""
)
