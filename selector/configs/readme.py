"""README.md of an emitted folder: what each value is and why, the predicted peak, and what comes after the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from estimators.memory import Estimate
from estimators.run import Run
from estimators.units import gib
from selector.configs import environment, hyper, saving
from selector.configs.launch import Start
from selector.configs.model_files import source_of
from selector.configs.script import SCRIPTED
from selector.launch import started_inside

ABOUT = {
    "train.py": "the training script; `--help` lists its arguments",
    "ds_config.json": "DeepSpeed's configuration",
    "accelerate.yaml": "how many processes, which engine (`accelerate launch --config_file`)",
    "training_args.json": "arguments of the Trainer",
    "launch.sh": "starts the run on this node; arguments go to the script",
    "slurm.sh": "starts `launch.sh` on all nodes of a Slurm job: `sbatch slurm.sh`, from this folder",
    "requirements.txt": "packages in the versions that were assumed, or in the range that the stack asks for",
    "model/config.json": "the model's shapes, for `--random-weights` and `dist-advisor validate`",
    "llamafactory.yaml": "arguments of `llamafactory-cli train`",
    "data/dataset_info.json": "where LLaMA-Factory finds `data/train.jsonl`",
    "axolotl.yaml": "configuration of `axolotl train`",
    "torchtune.yaml": "configuration of the recipe that `tune run` starts",
    "titan_config.py": "the function that torchtitan loads by `--module titan_config --config run`",
    "fsdp_config.json": "FSDP's settings, for swift's `--fsdp`",
    "make_data.py": "writes `data/train.jsonl`, random words, where no such file is: put yours there",
    "plan.json": "the question, the strategy and the prediction, for `dist-advisor validate`",
    "README.md": "this page",
}
SETTINGS = (
    "load_dtype", "param_dtype", "frozen_dtype", "compute_dtype", "grad_dtype", "reduce_dtype", "master_dtype",
    "state_dtype", "adapter_dtype", "optimizer",
)  # fmt: skip


def readme(estimate: Estimate, files: Mapping[str, str], start: Start, extra: str = "") -> str:
    """The page, as GitHub-flavoured Markdown."""
    run = estimate.run
    parts = [
        f"# {run.model.name} on {run.cluster.nodes} x {run.cluster.gpus_per_node} {run.cluster.gpu.label}: "
        f"{estimate.strategy}",
        _run_it(run, start),
        extra,
        _memory(estimate),
        _batch(run),
        _values(run),
        _environment(run),
        saving.section(estimate),
        _notes(estimate),
        _files(files),
    ]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def _run_it(run: Run, start: Start) -> str:
    first = started_inside(run.cluster.nodes)
    lines = ["## Run it", "", "```bash", "pip install -r requirements.txt", first]
    if start.resumes:
        if run.workload.method != "qlora":  # quantised weights come from a checkpoint
            lines += [f"{first} --random-weights --steps 5  # downloads nothing: memory and speed only"]
        lines += [f"{first} --data texts.jsonl          # your data: one object with a 'text' field a line"]
    lines += ["dist-advisor validate .                # measured beside predicted", "```"]
    if run.cluster.nodes > 1:
        last = run.cluster.nodes - 1
        lines += ["", "Without Slurm, start `launch.sh` on every node, each with its number:", "", "```bash",
                  f"MASTER_ADDR=address-of-node-0 NODE_RANK=0 ./launch.sh  # ... NODE_RANK={last} on the last", "```"]  # fmt: skip
    source = source_of(run.model)
    if source.count("/") == 1 and not source.startswith("/"):
        what = "tokenizer of `{}` is" if run.workload.stack == "torchtitan" else "weights of `{}` are"
        lines += ["", f"The {what.format(source)} downloaded on the first start. Where their owner wants a licence to be "
                  "accepted, do that on the hub and run `hf auth login` once."]  # fmt: skip
    if run.workload.stack == "torchtitan":
        lines += ["", "The data is C4, streamed from the hub, as in torchtitan's own configuration of this model."]
    elif run.workload.stack not in SCRIPTED:
        lines += ["", "Your data goes to `data/train.jsonl`: an object with a `text` field a line. Until then random words "
                  "are trained on."]  # fmt: skip
    return "\n".join(lines)


def _memory(estimate: Estimate) -> str:
    gpu = estimate.gpu
    rows = ["## Predicted memory", "", f"Verdict: **{estimate.verdict}**. The peak is at `{estimate.peak.name}`.", "",
            "| of the GPU that needs most | GiB |", "|---|---:|"]  # fmt: skip
    rows += [f"| allocated by torch | {gib(gpu.allocated.expected, 2)} |"]
    rows += [f"| reserved by torch's allocator | {gib(gpu.reserved.expected, 2)} |"]
    rows += [f"| the process, as nvidia-smi shows it | {gib(gpu.process.expected, 2)} of {gib(gpu.capacity, 2)} |"]
    rows += [f"| host RAM of a node | {gib(estimate.host.expected, 1)} |"]
    if estimate.nvme_bytes:
        rows += [f"| NVMe of a node | {gib(estimate.nvme_bytes, 1)} |"]
    rows += ["", "At the peak:", "", "| what | GiB | how |", "|---|---:|---|"]
    terms = sorted((t for t in estimate.peak.terms if t.place == "gpu"), key=lambda t: -t.bytes)
    rows += [f"| {_cell(t.name)} | {gib(t.bytes, 2)} | {_cell(t.formula)} |" for t in terms]
    return "\n".join(rows)


def _batch(run: Run) -> str:
    work = run.workload
    return (
        "## Batch\n\n"
        f"{_counted(work.micro_batch, 'sequence')} a GPU and micro-step x {_counted(work.grad_accum, 'micro-step')} x "
        f"{_counted(run.ranks, 'GPU')} = {_counted(hyper.global_batch(run), 'sequence')} of {work.seq_len} tokens an "
        "optimizer step, the same in every file."
    )


def _counted(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}"


def _values(run: Run) -> str:
    """Settings and knobs with what they came from."""
    settings = run.settings
    rows = ["## Why each value is what it is", "", "| value | | from |", "|---|---|---|"]
    for name in SETTINGS:
        rows.append(f"| {name} | {getattr(settings, name)} | {_cell(settings.origins.get(name, ''))} |")
    for name, value in settings.knobs.items():
        rows.append(f"| {name} | {str(value).lower() if isinstance(value, bool) else value} | "
                    f"{_cell(settings.origins.get(name, ''))} |")  # fmt: skip
    rows.append(f"| learning rate | {hyper.learning_rate(run)} | common for method {run.workload.method}; "
                "no estimate depends on it: tune it |")  # fmt: skip
    rows.append(f"| gradient clipping | {hyper.GRADIENT_CLIPPING} | common; 0 turns it off |")
    rows += [f"| {name} | {value} | {why} |" for name, value, why in hyper.REASONS]
    return "\n".join(rows)


def _environment(run: Run) -> str:
    rows = ["## Environment", "", "Set in the launch script, unless they are set already.", ""]
    rows += [f"- `{name}={value}`: {why}." for name, value, why in environment.variables(run)]
    if "nvme" in (run.strategy.optimizer, run.strategy.params):
        rows.append("- `nvme_swap/` must lie on the node's own NVMe: `ln -s /path/on/nvme nvme_swap` before the start. "
                    "A network file system or tmpfs fails or fills the RAM.")  # fmt: skip
    return "\n".join(rows)


def _notes(estimate: Estimate) -> str:
    return "\n".join(["## Notes", "", *(f"- {note}" for note in estimate.notes)]) if estimate.notes else ""


def _files(files: Mapping[str, str]) -> str:
    return "\n".join(["## Files", "", *_rows(files)])


def _rows(files: Mapping[str, str]) -> Iterator[str]:
    for name in (*files, "README.md"):
        yield f"- `{name}`: {ABOUT.get(name, 'configuration of the stack')}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
