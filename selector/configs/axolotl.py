"""Axolotl: one YAML, by the schema of axolotl/utils/schemas (0.19.0).

``type: completion`` trains on plain text and cuts it at ``sequence_len``.
"""

from __future__ import annotations

from typing import Any

from estimators.memory import Estimate
from estimators.run import Run
from selector.configs import hugging_face, hyper, refusal, samples, shell
from selector.configs.launch import TORCHRUN_RANK, Start
from selector.configs.model_files import source_of
from selector.configs.script import DTYPES, lora_targets
from selector.configs.wrapping import block_classes
from selector.configs.yaml_text import dump

SAME = (
    "output_dir", "gradient_accumulation_steps", "max_steps", "learning_rate", "weight_decay", "adam_beta1",
    "adam_beta2", "adam_epsilon", "max_grad_norm", "bf16", "fp16", "gradient_checkpointing",
    "gradient_checkpointing_kwargs", "logging_steps", "save_strategy", "save_steps", "save_total_limit", "seed",
    "ddp_find_unused_parameters", "ddp_bucket_cap_mb", "accelerator_config", "torch_compile", "deepspeed",
)  # fmt: skip
# On unless said otherwise (schemas/config.py check_auto_enable_lora_kernels); the estimate is of peft's own layers.
LORA_KERNELS = ("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel", "lora_embedding_kernel")


def arguments(run: Run) -> dict[str, Any]:
    """The YAML as plain data. Raises ``IllegalCombination`` for what Axolotl has no word for."""
    hugging_face.check(run, "Axolotl's YAML")
    work, made = run.workload, hugging_face.training(run)
    if "ddp_static_graph" in made:
        raise refusal.refuse(run, "Axolotl's YAML has no word for static_graph")
    return {
        "base_model": source_of(run.model),
        "trust_remote_code": run.model.shapes == "formula",
        "attn_implementation": hugging_face.ATTENTION[run.attention],
        "datasets": [{"path": samples.FILE, "ds_type": "json", "type": "completion", "field": "text"}],
        "dataset_prepared_path": "prepared",
        "val_set_size": 0,
        "auto_resume_from_checkpoints": True,
        "sequence_len": work.seq_len,
        "sample_packing": False,
        "pad_to_sequence_len": True,
        **_method(run),
        "micro_batch_size": work.micro_batch,
        "optimizer": made.get("optim", "adamw_torch"),
        "lr_scheduler": "constant",
        **{name: made[name] for name in SAME if name in made},
        **_dtype(run),
        **_loss(run),
        **_fsdp(run),
    }


def _dtype(run: Run) -> dict[str, Any]:
    """Pure 16 bit is loaded so and has no mixed precision on top; ``bf16`` loads 16 bit and only autocasts."""
    mixed = run.workload.precision.endswith("-mixed")
    if mixed and run.settings.load_dtype == "fp32":
        raise refusal.refuse(run, "Axolotl loads 16-bit weights under bf16 and fp16, and trains them as they are",
                             "give --param-dtype bf16, --precision bf16, or stack trainer")  # fmt: skip
    if run.workload.precision in ("bf16", "fp16") and run.strategy.engine != "deepspeed":
        return {DTYPES[run.settings.compute_dtype]: True}
    return {"float32": True} if run.workload.precision == "fp32" else {}


def _loss(run: Run) -> dict[str, Any]:
    if run.workload.loss == "fused":
        others = dict.fromkeys(("liger_rope", "liger_rms_norm", "liger_glu_activation"), False)
        plugin = "axolotl.integrations.liger.LigerPlugin"
        return {"plugins": [plugin], **others, "liger_fused_linear_cross_entropy": True}
    return {"chunked_cross_entropy": True} if run.workload.loss == "chunked" else {}


def _method(run: Run) -> dict[str, Any]:
    work = run.workload
    if work.method == "full":
        return {}
    if work.method == "freeze":
        trained = (part.prefix.format(part.first + i) for part in run.model.blocks for i in range(part.count)
                   if any(p.trainable for p in part.parameters))  # fmt: skip
        if work.freeze:
            raise refusal.refuse(run, "Axolotl names the parameters that train, not modules that do not")
        return {"unfrozen_parameters": [f"^{stem.replace('.', chr(92) + '.')}\\." for stem in trained]}
    targets = lora_targets(run)
    made: dict[str, Any] = {
        "adapter": "qlora" if work.method == "qlora" and work.quant != "int8" else "lora",
        "lora_r": work.lora_rank, "lora_alpha": hyper.LORA_ALPHA_PER_RANK * work.lora_rank, "lora_dropout": 0.0,
        **({"lora_target_linear": True} if targets == "all-linear" else {"lora_target_modules": list(targets)}),
    }  # fmt: skip
    made |= dict.fromkeys(LORA_KERNELS, False)
    if work.modules_to_save:
        made["lora_modules_to_save"] = list(work.modules_to_save)
    if work.method == "dora":
        made["peft_use_dora"] = True
    if work.method == "qlora":
        made["load_in_8bit" if work.quant == "int8" else "load_in_4bit"] = True
        if work.quant == "nf4":
            made["bnb_config_kwargs"] = {"bnb_4bit_use_double_quant": False}
    return made


def _fsdp(run: Run) -> dict[str, Any]:
    if run.strategy.engine not in ("fsdp1", "fsdp2"):
        return {}
    if run.strategy.engine == "fsdp1":
        raise refusal.refuse(run, "FSDP1 is deprecated in Axolotl's YAML", "use fsdp-full-shard, or stack accelerate")
    refusal.only_options(run, ("shard", "sync_each_batch"), "Axolotl's YAML")
    made: dict[str, Any] = {
        "fsdp_version": 2,
        "fsdp_config": {
            "reshard_after_forward": run.strategy.sharding != "shard-grad-op",
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "transformer_layer_cls_to_wrap": ",".join(block_classes(run)),
            "offload_params": bool(run.strategy.params),
            "cpu_ram_efficient_loading": False,
            "state_dict_type": "SHARDED_STATE_DICT",
            "final_state_dict_type": "FULL_STATE_DICT",
            "activation_checkpointing": False,
        },
    }
    if run.strategy.sharding == "hybrid-shard":
        made |= {"dp_replicate_size": run.ranks // run.shards, "dp_shard_size": run.shards}
    return made


def target(estimate: Estimate) -> tuple[dict[str, str], Start]:
    """The files and the command."""
    run = estimate.run
    made = {
        "axolotl.yaml": dump(arguments(run)),
        **hugging_face.deepspeed_file(run),
        **samples.files(run, hyper.SEED, hyper.STEPS),
    }
    train = ("axolotl", "train", "axolotl.yaml")
    if run.ranks == 1:
        return made, Start((*train, "--launcher", "python"), "", samples.MAKE, resumes=False)
    per_node = f"--nproc-per-node={run.cluster.gpus_per_node}"
    words = (*train, "--launcher", "torchrun", "--", per_node)
    each = f"{shell.line(words)} --nnodes={run.cluster.nodes} {TORCHRUN_RANK}"
    return made, Start(words, each, samples.MAKE, resumes=False)
