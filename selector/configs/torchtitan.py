"""torchtitan: a config function in Python, loaded with ``--module titan_config --config run`` (torchtitan 0.3.0).

It starts from torchtitan's own config of the model and sets what the estimate assumes. Sources: torchtitan/config/
configs.py and manager.py, distributed/activation_checkpoint.py, components/loss.py.
"""

from __future__ import annotations

from estimators.memory import Estimate
from estimators.run import Run
from selector.configs import hyper, refusal, shell
from selector.configs.launch import TORCHRUN_RANK, Start

# Catalogue name -> module and config function that the package has; dense models, for mixtures bring more degrees.
MODELS = {
    "Llama-3.1-8B": ("llama3", "llama3_8b"), "Llama-3.1-70B": ("llama3", "llama3_70b"),
    "Llama-3.1-405B": ("llama3", "llama3_70b"), "Qwen3-0.6B": ("qwen3", "qwen3_0_6b"),
    "Qwen3-1.7B": ("qwen3", "qwen3_1_7b"), "Qwen3-14B": ("qwen3", "qwen3_14b"), "Qwen3-32B": ("qwen3", "qwen3_32b"),
}  # fmt: skip
# llama3_405b() builds an fp8 model, and refuses on cards without fp8: the 70B's config with the 405B's plain model.
SIZES = {"Llama-3.1-405B": "405B"}
# Degrees that the larger models' configs set; the estimate has none of them.
WHOLE = ("tensor_parallel_degree", "pipeline_parallel_degree", "context_parallel_degree", "expert_parallel_degree")
DTYPES = {"bf16-mixed": "float32", "fp32": "float32", "bf16": "bfloat16"}
RECOMPUTE = {"full": "FullAC.Config()", "none": "None"}


def config(run: Run) -> str:
    """The module. Raises ``IllegalCombination`` for what torchtitan has no word for."""
    _check(run)
    module, name = MODELS[run.model.name]
    values = "\n".join(f"    config.{key} = {value}" for key, value in settings(run).items())
    spec = ""
    if run.model.name in SIZES:
        spec = f'    config.model_spec = model_registry("{SIZES[run.model.name]}")\n'
    imports = ["from torchtitan.distributed.activation_checkpoint import FullAC"] if _recomputes(run) else []
    if run.workload.loss == "plain":
        imports.append("from torchtitan.components.loss import CrossEntropyLoss")
        imports.append("from torchtitan.models.common.config_utils import decoder_vocab_size")
    if spec:
        imports.append(f"from torchtitan.models.{module} import model_registry")
    lines = "\n".join(sorted([*imports, f"from torchtitan.models.{module}.config_registry import {name}"]))
    return (
        f'"""{run.model.name}, {run.strategy.name}. torchtitan loads it by --module titan_config --config run."""\n\n'
        f"{lines}\n\n\ndef run():\n    config = {name}()\n{spec}{values}\n    return config\n"
    )


def _recomputes(run: Run) -> bool:
    return run.workload.checkpointing == "full"


def settings(run: Run) -> dict[str, str]:
    """Attribute path of the config -> Python expression."""
    work = run.workload
    replicas, shards = _degrees(run)
    made = {
        "hf_assets_path": '"model"',
        "training.local_batch_size": str(work.micro_batch),
        "training.global_batch_size": str(hyper.global_batch(run)),
        "training.seq_len": str(work.seq_len),
        "training.max_norm": str(hyper.GRADIENT_CLIPPING),
        "training.steps": str(hyper.STEPS),
        "training.enable_cpu_offload": str(bool(run.strategy.params)),
        "training.dtype": f'"{DTYPES[work.precision]}"',
        "training.mixed_precision_param": '"float32"' if work.precision == "fp32" else '"bfloat16"',
        "training.mixed_precision_reduce": '"float32"',
        "parallelism.data_parallel_replicate_degree": str(replicas),
        "parallelism.data_parallel_shard_degree": str(shards),
        **{f"parallelism.{degree}": "1" for degree in WHOLE},
        "parallelism.fsdp_reshard_after_forward": '"never"' if run.strategy.sharding == "shard-grad-op" else '"always"',
        "activation_checkpoint": RECOMPUTE[work.checkpointing],
        "compile.enable": str(work.compile),
        "checkpoint.enable": "True",
        "checkpoint.interval": str(hyper.SAVE_EVERY),
        "checkpoint.last_save_model_only": "True",
        "checkpoint.last_save_in_hf": "True",
        "debug.seed": str(hyper.SEED),
    }
    if work.loss == "plain":
        vocabulary = "decoder_vocab_size(config.model_spec)"
        made["loss"] = f"CrossEntropyLoss.Config(global_vocab_size={vocabulary})"
    return made


def _degrees(run: Run) -> tuple[int, int]:
    """Replicas x shards."""
    if run.strategy.engine in ("torch", "ddp"):
        return run.ranks, 1
    return run.ranks // run.shards, run.shards


def _check(run: Run) -> None:
    work = run.workload
    if run.model.name not in MODELS:
        raise refusal.refuse(run, f"torchtitan has a config for {', '.join(MODELS)}, not for {run.model.name}")
    if run.strategy.engine == "fsdp1":
        raise refusal.refuse(run, "torchtitan shards with FSDP2 only", "use fsdp-full-shard, or stack torch")
    if work.precision not in DTYPES:
        raise refusal.refuse(run, f"torchtitan has no precision {work.precision}", "give bf16-mixed, bf16 or fp32")
    refusal.only_options(run, ("shard",), "torchtitan's config")
    refusal.own_dtypes(run, (), "torchtitan's config")
    refusal.only_values(run, "method", ("full",), "this configuration")
    refusal.only_values(run, "checkpointing", ("none", "full"), "this configuration")
    refusal.only_values(run, "loss", ("plain", "chunked"), "torchtitan's config")
    refusal.only_values(run, "attention", ("sdpa", "flash"), "torchtitan (flex and variable-length flash)")
    refusal.only_values(run, "padding", ("none",), "torchtitan's dataloader")
    if run.settings.optimizer != "adamw-fused":
        raise refusal.refuse(run, f"its config is written for AdamW (fused), not {run.settings.optimizer}")


def target(estimate: Estimate) -> tuple[dict[str, str], Start]:
    """The module and the command; tokenizer and weights are downloaded into ``model`` once."""
    run = estimate.run
    train = "-m torchtitan.train --module titan_config --config run"
    alone = ("torchrun", "--standalone", "--nproc-per-node", str(run.cluster.gpus_per_node), *train.split())
    each = f"torchrun --nnodes {run.cluster.nodes} --nproc-per-node {run.cluster.gpus_per_node} {TORCHRUN_RANK} {train}"
    before = f"export PYTHONPATH=. && {{ [ -e model/tokenizer.json ] || {_download(run)}; }}"
    return {"titan_config.py": config(run)}, Start(alone, each, before, resumes=False)


def _download(run: Run) -> str:
    from selector.configs.model_files import source_of

    return shell.line(("hf", "download", source_of(run.model), "--local-dir", "model", "--include", "tokenizer*"))
