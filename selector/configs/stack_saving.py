"""Checkpoints, ordinary models and restarts of the stacks that have no script of ours: what their own code writes.

Sources: swift/arguments/sft_args.py, pipelines/train/sft.py (4.6.0); llamafactory/hparams/parser.py, train/pt/workflow.py
(0.9.5); axolotl/train.py, utils/train.py, cli/merge_*.py (0.19.0); torchtitan/components/checkpointer (0.3.0);
torchtune/training/checkpointing (0.6.1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from estimators.run import Run
from estimators.units import gib
from selector.configs import hyper
from selector.configs.saved_sizes import merged_bytes, whole_bytes
from selector.configs.script import lora_targets
from selector.launch import started_inside

NEWEST = f"checkpoints/checkpoint-{hyper.STEPS}"  # the last one


def section(run: Run) -> str:
    """Markdown: checkpoints, the way to an ordinary model, restart; of a stack with a configuration of its own."""
    ordinary, restart = SECTIONS[run.workload.stack](run)
    parts = ["## Checkpoints, and how the run becomes an ordinary model", ordinary, "## Restart", restart]
    return "\n\n".join(parts)


def to_fp32(folder: str) -> str:
    """DeepSpeed's own script, which lies beside its parts."""
    return f"python {folder}/zero_to_fp32.py {folder} model-fp32 --safe_serialization"


def _code(text: str, language: str = "bash") -> str:
    return f"```{language}\n{text}\n```"


# --------------------------------------------------------------------------------- the three built on the Trainer


def _written(run: Run) -> str:
    return (
        f"Every {hyper.SAVE_EVERY} steps (`save_steps`) a checkpoint is written, the last one to `{NEWEST}`, and the "
        "newest two are kept: weights, and each rank's part of the optimizer states. On several nodes `checkpoints/` "
        "must lie on a file system that all of them share."
    )


def _ordinary(run: Run, merge: str = "") -> str:
    """What a checkpoint of the Trainer is, by engine and method. ``merge``: the stack's own command for adapters."""
    adapters = run.workload.has_adapters
    if run.strategy.engine in ("fsdp1", "fsdp2"):
        return _from_shards(run)
    parts = []
    if run.strategy.stage == 3 and not adapters:
        gathers = bool(run.settings.knobs["gather_16bit_on_save"])
        size = gib(whole_bytes(run), 1)
        parts.append(
            f"Each is also an ordinary model as `from_pretrained` reads it: rank 0 gathers {size} GiB in its host RAM "
            "for it." if gathers else "Each holds shards only."
        )  # fmt: skip
    elif not adapters:
        parts.append("Each is also an ordinary model as `from_pretrained` reads it: every rank has the weights whole.")
    if run.strategy.engine == "deepspeed" and not adapters:
        parts.append(
            f"For fp32 weights, without a GPU, in about {gib(merged_bytes(run), 1)} GiB of host RAM (the parts, and the "
            f"merged model):\n\n{_code(to_fp32(NEWEST))}"
        )
    if adapters:
        parts.append(f"Each holds the adapters alone. To merge them into the base model:\n\n{_code(merge or _MERGE)}")
    return "\n\n".join(parts)


_MERGE = f"""python - <<'EOF'
from peft import AutoPeftModelForCausalLM

AutoPeftModelForCausalLM.from_pretrained("{NEWEST}").merge_and_unload().save_pretrained("merged")
EOF"""


def _from_shards(run: Run) -> str:
    """FSDP writes shards, at the end too."""
    merge = f"accelerate merge-weights {NEWEST}/pytorch_model_fsdp_0"
    size = gib(merged_bytes(run), 1)
    if not run.workload.has_adapters:
        return (
            "Each holds shards only, the last one too. To make an ordinary model of one, without a GPU, in about "
            f"{size} GiB of host RAM (the shards, and the merged model):\n\n"
            f"{_code(f'{merge} merged && cp model/config.json merged/')}"
        )
    target = lora_targets(run)
    words = [f"r={run.workload.lora_rank}", f"lora_alpha={hyper.LORA_ALPHA_PER_RANK * run.workload.lora_rank}"]
    words.append(f"target_modules={target if isinstance(target, str) else list(target)!r}")
    if run.workload.method == "dora":
        words.append("use_dora=True")
    words[-1] = words[-1].replace("=all-linear", '="all-linear"')
    return (
        "Each holds shards of the adapters only, the last one too. To make an ordinary adapter of one, without a GPU, and "
        "to merge it into the base model:\n\n"
        + _code(
            f"{merge} adapter && mv adapter/model.safetensors adapter/adapter_model.safetensors\npython - <<'EOF'\n"
            "from peft import AutoPeftModelForCausalLM, LoraConfig\n\n"
            f'LoraConfig({", ".join(words)}, task_type="CAUSAL_LM",\n'
            f'           base_model_name_or_path="{_base(run)}").save_pretrained("adapter")\n'
            'AutoPeftModelForCausalLM.from_pretrained("adapter").merge_and_unload().save_pretrained("merged")\nEOF'
        )
    )


def _base(run: Run) -> str:
    from selector.configs.model_files import source_of

    return source_of(run.model)


def _swift(run: Run) -> tuple[str, str]:
    merge = f"swift export --adapters {NEWEST} --merge_lora true --output_dir merged"
    made = f"{_written(run)}\n\n{_ordinary(run, '' if run.workload.method == 'qlora' else merge)}"
    start = started_inside(run.cluster.nodes)
    requeue = " A Slurm job that is requeued does so by itself, from the newest." if run.cluster.nodes > 1 else ""
    return made, f"`{start} --resume_from_checkpoint {NEWEST}` goes on from a checkpoint.{requeue}{_ranks(run)}"


def _llamafactory(run: Run) -> tuple[str, str]:
    return f"{_written(run)}\n\n{_ordinary(run)}", _by_itself(run)


def _axolotl(run: Run) -> tuple[str, str]:
    if run.workload.has_adapters:
        end = f"At the end `checkpoints/` holds the adapters. To merge them:\n\n{_code('axolotl merge-lora axolotl.yaml')}"
        return f"{_written(run)}\n\n{end}\n\nThe merged model stands in `checkpoints/merged`.", _by_itself(run)
    size = gib(whole_bytes(run), 1)
    whole = " (gathered in rank 0's host RAM, " + size + " GiB)" if run.strategy.is_sharded else ""
    end = f"At the end `checkpoints/` holds the model as `from_pretrained` reads it{whole}."
    if run.strategy.engine == "fsdp2":
        merge = _code("axolotl merge-sharded-fsdp-weights axolotl.yaml")
        end += f" From the newest checkpoint of a run that did not end, into `checkpoints/merged`:\n\n{merge}"
    elif run.strategy.engine == "deepspeed":
        merge = _code(to_fp32(NEWEST))
        end += f" From any checkpoint, in about {gib(merged_bytes(run), 1)} GiB of host RAM:\n\n{merge}"
    return f"{_written(run)}\n\n{end}", _by_itself(run)


def _by_itself(run: Run) -> str:
    start = started_inside(run.cluster.nodes)
    return (
        f"`{start}` goes on from the newest checkpoint in `checkpoints/` by itself; move that folder away to start "
        f"anew.{_ranks(run)}"
    )


def _ranks(run: Run) -> str:
    if run.strategy.engine == "deepspeed":
        return " DeepSpeed loads a checkpoint into the same number of ranks."
    return " Another number of ranks is fine." if run.strategy.is_sharded else ""


# ----------------------------------------------------------------------------------------------------- PyTorch's own


def _torchtitan(run: Run) -> tuple[str, str]:
    made = (
        f"Every {hyper.SAVE_EVERY} steps `outputs/checkpoint/step-N` is written by `torch.distributed.checkpoint`: each "
        "rank writes its own part. The last one holds the weights alone, as safetensors with the names of transformers: "
        "put `model/config.json` and the tokenizer beside them and `from_pretrained` reads it. On several nodes "
        "`outputs/` must lie on a file system that all of them share.\n\n"
        "torchtitan starts from random weights. To start from the pretrained ones, download them and give their path:\n\n"
    )
    again = started_inside(run.cluster.nodes)
    load = f"hf download {_base(run)} --local-dir weights\n{again}"
    load += ' --checkpoint.initial_load_in_hf --checkpoint.initial_load_path "$PWD/weights"'
    return made + _code(load), (
        f"`{again}` goes on from the newest checkpoint in `outputs/checkpoint/` by itself, on any number of ranks; move "
        "that folder away to start anew. After the last step there is nothing to go on from but the weights."
    )


def _torchtune(run: Run) -> tuple[str, str]:
    adapters = ", and the adapters beside it" if run.workload.has_adapters else ""
    size = gib(merged_bytes(run) / 2, 1)
    made = (
        f"At the end of an epoch (here {hyper.STEPS} steps) `checkpoints/epoch_N` is written as `from_pretrained` reads "
        f"it{adapters}: rank 0 gathers about {size} GiB in its host RAM for it."
    )
    again = started_inside(run.cluster.nodes)
    return made, (
        f"`{again} resume_from_checkpoint=True epochs=2` goes on from the last epoch, with the optimizer states of "
        "`checkpoints/recipe_state`. A run that ends inside its first epoch has no checkpoint: it starts anew."
    )


SECTIONS: Mapping[str, Callable[[Run], tuple[str, str]]] = {
    "swift": _swift,
    "llamafactory": _llamafactory,
    "axolotl": _axolotl,
    "torchtitan": _torchtitan,
    "torchtune": _torchtune,
}
