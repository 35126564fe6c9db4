"""What a run writes, how that becomes an ordinary checkpoint, and how a run goes on: a section of the README."""

from __future__ import annotations

from estimators.memory import Estimate
from estimators.run import Run
from estimators.units import gib
from selector.configs import hyper, stack_saving
from selector.configs.saved_sizes import merged_bytes, whole_bytes
from selector.configs.script import SCRIPTED, kind_of
from selector.launch import started_inside


def section(estimate: Estimate) -> str:
    """Markdown: checkpoints, the way to an ordinary model, restart."""
    run = estimate.run
    if run.workload.stack not in SCRIPTED:
        return stack_saving.section(run)
    parts = ["## Checkpoints, and how the run becomes an ordinary model", "", _written(run), "", _gathered(run)]
    if run.workload.has_adapters:
        parts += ["", "Only the adapters are saved. To merge them into the base model:", "", "```bash", _MERGE, "```"]
    return "\n".join([*parts, "", "## Restart", "", _restart(run)])


_MERGE = """python - <<'EOF'
from peft import AutoPeftModelForCausalLM

AutoPeftModelForCausalLM.from_pretrained("checkpoints/model").merge_and_unload().save_pretrained("merged")
EOF"""


def last(run: Run) -> str:
    """The folder of the last checkpoint, as the script names it."""
    names = {"trainer": f"checkpoint-{hyper.STEPS}", "deepspeed": f"global_step{hyper.STEPS}"}
    return f"checkpoints/{names.get(kind_of(run), f'step-{hyper.STEPS:06d}')}"


def _written(run: Run) -> str:
    return (
        f"Every {hyper.SAVE_EVERY} steps (`--save-every`) a checkpoint is written, the last one to `{last(run)}`: each "
        "rank writes its own part of weights and optimizer states, nothing is gathered. On several nodes `checkpoints/` "
        "must lie on a file system that all of them share."
    )


def _gathered(run: Run) -> str:
    size = gib(whole_bytes(run), 1)
    at_end = (
        "At the end `checkpoints/model` is written as `from_pretrained` reads it: the whole model is gathered in the "
        f"host RAM of rank 0, {size} GiB, on top of what the run holds there."
    )
    engine = run.strategy.engine
    if engine == "deepspeed":
        where = "checkpoints" if kind_of(run) == "deepspeed" else last(run)  # where DeepSpeed's `latest` lies
        full = gib(merged_bytes(run), 1)
        return (
            f"{at_end}\n\nWithout that, or for fp32 weights, from any checkpoint and without a GPU:\n\n```bash\n"
            f"{stack_saving.to_fp32(where)}\n```\n\n"
            f"It reads all parts into host RAM: about {full} GiB (the parts, and the merged fp32 model)."
        )
    if engine in ("fsdp1", "fsdp2") and kind_of(run) != "torch":
        return (
            f"{at_end}\n\nFrom any checkpoint, without a GPU:\n\n```bash\naccelerate merge-weights "
            f"{last(run)}/pytorch_model_fsdp_0 merged\n```"
        )
    if kind_of(run) == "torch" and run.strategy.base != "single":
        return (
            f"{at_end}\n\nFrom any checkpoint, without a GPU:\n\n```bash\npython -m "
            f"torch.distributed.checkpoint.format_utils dcp_to_torch {last(run)} merged.pt\n```"
        )
    return at_end


def _restart(run: Run) -> str:
    first = f"{started_inside(run.cluster.nodes)} --resume"
    moved = {
        "deepspeed": "DeepSpeed loads a checkpoint into the same number of ranks; for another number make it "
        "universal first (`python -m deepspeed.checkpoint.ds_to_universal`), or go on from the fp32 weights without "
        "optimizer states.",
        "fsdp1": "The parts are resharded on loading: another number of ranks is fine.",
        "fsdp2": "The parts are resharded on loading: another number of ranks is fine.",
    }
    requeue = " A Slurm job that is requeued resumes by itself." if run.cluster.nodes > 1 else ""
    return f"`{first}` goes on from the newest checkpoint.{requeue} {moved.get(run.strategy.engine, '')}".rstrip()
