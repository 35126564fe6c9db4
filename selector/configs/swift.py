"""ms-swift: one command, ``swift pt``, with the arguments of swift/arguments (4.6.0).

``pt`` trains on plain text; ``sft`` takes the same arguments and conversations.
"""

from __future__ import annotations

import json
from typing import Any

from estimators.memory import Estimate
from estimators.model import catalogue
from estimators.run import Run
from selector.configs import hugging_face, hyper, refusal, samples
from selector.configs.launch import Start, with_variables
from selector.configs.model_files import source_of
from selector.configs.script import DTYPES, frozen, lora_targets
from selector.configs.wrapping import block_classes

PASSED = (
    "output_dir", "per_device_train_batch_size", "gradient_accumulation_steps", "max_steps", "learning_rate",
    "lr_scheduler_type", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm", "bf16", "fp16",
    "optim", "gradient_checkpointing", "logging_steps", "save_strategy", "save_steps", "save_total_limit", "report_to",
    "seed", "ddp_find_unused_parameters", "ddp_bucket_cap_mb", "ddp_static_graph", "accelerator_config",
    "torch_compile", "use_liger_kernel", "liger_kernel_config",
)  # fmt: skip
# Classes that several of swift's model types share: a model that swift does not know by its id must name one of them,
# and the type of transformers' config is one (swift/model, 4.6.0; kept in the schema by scripts/stack-parsers).
SHARED_CLASSES = (
    "LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "MistralForCausalLM", "MixtralForCausalLM",
    "Phi3ForCausalLM", "InternLM2ForCausalLM", "Qwen2VLForConditionalGeneration", "Qwen3VLForConditionalGeneration",
    "Mistral3ForConditionalGeneration", "Qwen2AudioForConditionalGeneration",
)  # fmt: skip


AGAIN = (
    "    newest=$(find checkpoints -maxdepth 1 -name 'checkpoint-*' 2>/dev/null | sort -V | tail -n 1 || true)\n"
    '    if [ -n "$newest" ]; then set -- "$@" --resume_from_checkpoint "$newest"; fi'
)


def arguments(run: Run) -> dict[str, Any]:
    """Argument -> value. Raises ``IllegalCombination`` for what swift has no word for."""
    hugging_face.check(run, "swift's command line")
    made = hugging_face.training(run)
    return {
        **_model(run),
        "torch_dtype": DTYPES[run.settings.load_dtype],
        "attn_impl": hugging_face.ATTENTION[run.attention],
        "dataset": [samples.FILE],
        "split_dataset_ratio": 0,
        "add_version": False,  # checkpoints/checkpoint-N, and no folder of its own for each start
        "max_length": run.workload.seq_len,
        "truncation_strategy": "right",
        **_method(run),
        **{name: made[name] for name in PASSED if name in made},
        **_engine(run),
    }


def _model(run: Run) -> dict[str, Any]:
    made = {"model": source_of(run.model), "use_hf": True}
    by_id = catalogue.find(run.model.name) is not None
    if run.model.class_name in SHARED_CLASSES and not by_id:
        made |= {"model_type": run.model.config["model_type"], "template": "dummy"}  # plain text needs no template
    return made


def _method(run: Run) -> dict[str, Any]:
    work = run.workload
    if work.method == "full":
        return {"tuner_type": "full"}
    if work.method == "freeze":
        return {"tuner_type": "full", "freeze_parameters": list(frozen(run))}
    targets = lora_targets(run)
    made: dict[str, Any] = {
        "tuner_type": "lora", "lora_rank": work.lora_rank,
        "lora_alpha": hyper.LORA_ALPHA_PER_RANK * work.lora_rank, "lora_dropout": 0,
        "target_modules": [targets] if isinstance(targets, str) else list(targets),
    }  # fmt: skip
    if work.modules_to_save:
        made["modules_to_save"] = list(work.modules_to_save)
    if work.method == "dora":
        made["use_dora"] = True
    if work.method == "qlora":
        made |= _quantised(run)
    return made


def _quantised(run: Run) -> dict[str, Any]:
    if run.workload.quant == "int8":
        return {"quant_method": "bnb", "quant_bits": 8}
    return {
        "quant_method": "bnb", "quant_bits": 4, "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": run.workload.quant == "nf4-double",
        "bnb_4bit_compute_dtype": DTYPES[run.settings.compute_dtype],
        "bnb_4bit_quant_storage": DTYPES.get(str(run.settings.knobs.get("quant_storage")), "uint8"),
    }  # fmt: skip


def _engine(run: Run) -> dict[str, Any]:
    if run.strategy.engine == "deepspeed":
        return {"deepspeed": "ds_config.json"}
    if run.strategy.engine in ("fsdp1", "fsdp2"):
        return {"fsdp": "fsdp_config.json"}
    return {}


def fsdp(run: Run) -> dict[str, Any]:
    """The file behind ``--fsdp``: swift reads FSDP2 only (sft_args.py ``_init_fsdp``)."""
    if run.strategy.engine == "fsdp1" or run.strategy.sharding == "hybrid-shard":
        raise refusal.refuse(run, "swift's --fsdp is FSDP2 over all ranks", "use fsdp-full-shard, or stack accelerate")
    refusal.only_options(run, ("sync_each_batch",), "swift's fsdp file")
    return {
        "fsdp": "full_shard auto_wrap" + (" offload" if run.strategy.params else ""),
        "fsdp_config": {
            "fsdp_version": 2,
            "reshard_after_forward": run.strategy.sharding != "shard-grad-op",
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "transformer_layer_cls_to_wrap": list(block_classes(run)),
            "cpu_offload": bool(run.strategy.params),
            "cpu_ram_efficient_loading": False,
            "state_dict_type": "SHARDED_STATE_DICT",
            "activation_checkpointing": False,
        },
    }


def words(run: Run) -> tuple[str, ...]:
    """The command."""
    made: list[str] = ["swift", "pt"]
    for name, value in arguments(run).items():
        values = value if isinstance(value, list) else [value]
        made += [f"--{name}", *map(_text, values)]
    return tuple(made)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value) if isinstance(value, dict) else str(value)


def target(estimate: Estimate) -> tuple[dict[str, str], Start]:
    """Files beside the command, and the command."""
    run = estimate.run
    made = {**hugging_face.deepspeed_file(run), **samples.files(run, hyper.SEED, hyper.STEPS)}
    if run.strategy.engine in ("fsdp1", "fsdp2"):
        made["fsdp_config.json"] = json.dumps(fsdp(run), indent=2) + "\n"
    return made, with_variables(run, words(run), samples.MAKE, AGAIN)
