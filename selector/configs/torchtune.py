"""torchtune: one YAML for its recipes (0.6.1). What each model needs stands in ``torchtune_models.json``.

torchtune has one dtype throughout: bf16 or fp32. Its distributed recipes are FSDP2. Source: recipes/
full_finetune_distributed.py, lora_finetune_distributed.py, and the configs beside them.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from estimators.memory import Estimate
from estimators.run import Run
from selector.configs import hyper, refusal, samples, shell
from selector.configs.launch import Start
from selector.configs.yaml_text import dump

MODELS = Path(__file__).with_name("torchtune_models.json")
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw": {"_component_": "torch.optim.AdamW"},
    "adamw-fused": {"_component_": "torch.optim.AdamW", "fused": True},
    "sgd": {"_component_": "torch.optim.SGD"},
    "adamw-8bit": {"_component_": "bitsandbytes.optim.AdamW8bit"},
    "paged-adamw": {"_component_": "bitsandbytes.optim.PagedAdamW"},
    "paged-adamw-8bit": {"_component_": "bitsandbytes.optim.PagedAdamW8bit"},
}
LOSSES = {"plain": "torch.nn.CrossEntropyLoss", "chunked": "torchtune.modules.loss.CEWithChunkedOutputLoss"}
METHODS = ("full", "lora", "dora", "qlora")


@cache
def models() -> dict[str, dict[str, Any]]:
    """Catalogue name -> hub id, builder, tokenizer, checkpoint files, as torchtune's own configs have them."""
    with open(MODELS, encoding="utf-8") as file:
        found: dict[str, dict[str, Any]] = json.load(file)["models"]
    return found


def config(run: Run) -> dict[str, Any]:
    """The YAML as plain data. Raises ``IllegalCombination`` for what torchtune has no word for."""
    _check(run)
    work, row = run.workload, models()[run.model.name]
    return {
        "output_dir": "checkpoints",
        "tokenizer": {**row["tokenizer"], "max_seq_len": work.seq_len},
        "dataset": {
            "_component_": "torchtune.datasets.text_completion_dataset", "source": "json",
            "data_files": samples.FILE, "column": "text", "split": "train", "packed": False,
        },
        "seed": hyper.SEED,
        "shuffle": True,
        "model": _model(run, row),
        "checkpointer": {**row["checkpointer"], "recipe_checkpoint": None, "output_dir": "checkpoints"},
        "resume_from_checkpoint": False,
        "batch_size": work.micro_batch,
        "epochs": 1,
        "optimizer": {**OPTIMIZERS[run.settings.optimizer], "lr": hyper.learning_rate(run),
                      "weight_decay": hyper.WEIGHT_DECAY},
        "loss": {"_component_": LOSSES[work.loss]},
        "max_steps_per_epoch": hyper.STEPS,
        "clip_grad_norm": hyper.GRADIENT_CLIPPING,
        "compile": work.compile,
        "gradient_accumulation_steps": work.grad_accum,
        "device": "cuda",
        "enable_activation_checkpointing": work.checkpointing != "none",
        "enable_activation_offloading": work.checkpointing == "offload",
        "dtype": "bf16" if work.precision == "bf16" else "fp32",
        "metric_logger": {"_component_": "torchtune.training.metric_logging.DiskLogger", "log_dir": "checkpoints/logs"},
        "log_every_n_steps": 1,
        "log_peak_memory_stats": True,
        "profiler": {"_component_": "torchtune.training.setup_torch_profiler", "enabled": False},
        **_method(run),
        **_engine(run),
    }  # fmt: skip


def _method(run: Run) -> dict[str, Any]:
    if run.workload.method == "full":
        return {"optimizer_in_bwd": bool(run.workload.optimizer_in_backward)}
    scheduler = "torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup"
    return {"save_adapter_weights_only": False, "lr_scheduler": {"_component_": scheduler, "num_warmup_steps": 0}}


def _engine(run: Run) -> dict[str, Any]:
    if run.strategy.engine != "fsdp2":
        return {}
    made: dict[str, Any] = {
        "fsdp_cpu_offload": bool(run.strategy.params),
        "fsdp_reshard_after_forward": run.strategy.sharding != "shard-grad-op",
    }
    if "head" in str(run.settings.knobs["wrap"]):
        made["custom_sharded_layers"] = ["tok_embeddings", "output"]
    return made


def _model(run: Run, row: dict[str, Any]) -> dict[str, Any]:
    work = run.workload
    module, _, name = row["builder"].rpartition(".")
    if work.method == "full":
        return {"_component_": row["builder"]}
    prefix = "qlora" if work.method == "qlora" else "lora"
    if prefix not in row["adapters"]:
        raise refusal.refuse(run, f"torchtune has no {prefix}_{name}")
    made: dict[str, Any] = {
        "_component_": f"{module}.{prefix}_{name}",
        "lora_attn_modules": ["q_proj", "k_proj", "v_proj", "output_proj"],
        "apply_lora_to_mlp": work.lora_targets == "all-linear",
        "lora_rank": work.lora_rank,
        "lora_alpha": hyper.LORA_ALPHA_PER_RANK * work.lora_rank,
        "lora_dropout": 0.0,
    }
    return {**made, "use_dora": True} if work.method == "dora" else made


def _check(run: Run) -> None:
    work, where = run.workload, "torchtune's recipes"
    if run.model.name not in models():
        raise refusal.refuse(run, f"torchtune has no model {run.model.name}; it has {', '.join(models())}")
    if run.strategy.engine in ("ddp", "fsdp1") or run.strategy.sharding == "hybrid-shard":
        raise refusal.refuse(run, "torchtune's recipes run on one GPU or shard over all ranks with FSDP2",
                             "use fsdp-full-shard")  # fmt: skip
    if work.precision not in ("bf16", "fp32"):
        raise refusal.refuse(run, f"torchtune has one dtype throughout, not {work.precision}", "give bf16 or fp32")
    if run.settings.optimizer not in OPTIMIZERS:
        raise refusal.refuse(run, f"{where} are not written here for the optimizer {run.settings.optimizer}")
    refusal.only_options(run, (), where)
    refusal.own_dtypes(run, (), where)
    refusal.only_values(run, "method", METHODS, where)
    refusal.only_values(run, "loss", tuple(LOSSES), where)
    refusal.only_values(run, "attention", ("sdpa",), where)
    refusal.only_values(run, "checkpointing", ("none", "full", "offload"), where)
    refusal.only_values(run, "padding", ("none",), where)
    if not isinstance(work.lora_targets, str) or work.modules_to_save:
        raise refusal.refuse(run, "torchtune adapts attention, or attention and MLP, and saves no other module")


def recipe(run: Run) -> str:
    kind = "full_finetune" if run.workload.method == "full" else "lora_finetune"
    return f"{kind}_{'single_device' if run.strategy.base == 'single' else 'distributed'}"


def target(estimate: Estimate) -> tuple[dict[str, str], Start]:
    """The YAML, data, and the command; weights are downloaded into ``weights`` once."""
    run = estimate.run
    made = {"torchtune.yaml": dump(config(run)), **samples.files(run, hyper.SEED, hyper.STEPS)}
    words: tuple[str, ...] = ("tune", "run")
    nodes: tuple[str, ...] = ()
    if run.strategy.base != "single":
        words = (*words, "--nproc-per-node", str(run.cluster.gpus_per_node))
        nodes = ("--nnodes", str(run.cluster.nodes), "--rdzv-backend", "c10d")
    train = (recipe(run), "--config", "torchtune.yaml")
    rendezvous = '--rdzv-endpoint "$MASTER_ADDR:$MASTER_PORT"'
    each = f"{shell.line((*words, *nodes))} {rendezvous} {shell.line(train)}"
    download = shell.line(("tune", "download", models()[run.model.name]["hub"], "--output-dir", "weights"))
    before = f"[ -d weights ] || {download}\n{samples.MAKE}"
    return made, Start((*words, *train), each, before, resumes=False)
