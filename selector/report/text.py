"""Words that tables and reports share."""

from __future__ import annotations

from estimators.memory import Estimate
from estimators.model.spec import ModelSpec
from estimators.time import StepTime
from estimators.time.towers import only_images
from estimators.units import gib

VERDICT_ORDER = {"fits": 0, "tight": 1, "unknown": 2, "no": 3}
VERDICT_STYLE = {"fits": "green", "tight": "yellow", "unknown": "cyan", "no": "red"}
CATEGORY_WORDS = {
    "params": "parameters", "gradients": "gradients", "master": "master weights", "optimizer": "optimizer states",
    "activations": "activations", "logits": "logits", "buffers": "buffers", "temporaries": "temporaries",
    "workspace": "workspaces",
}  # fmt: skip
# Okabe and Ito, "Color Universal Design" (2008), told apart under the common kinds of colour blindness
CATEGORY_COLOURS = {
    "params": "#0072B2", "gradients": "#E69F00", "master": "#56B4E9", "optimizer": "#009E73", "activations": "#F0E442",
    "logits": "#D55E00", "buffers": "#CC79A7", "temporaries": "#BBBBBB", "workspace": "#333333",
}  # fmt: skip
OUTSIDE = "context, communicators"  # of a process, beside its tensors
VERDICT_WORDS = {"fits": "fits", "tight": "tight", "unknown": "unknown", "no": "does not fit"}
METHOD_WORDS = {
    "full": "full training", "lora": "LoRA", "dora": "DoRA", "qlora": "QLoRA", "freeze": "frozen parts",
}  # fmt: skip


def by_verdict(estimates: list[Estimate]) -> list[Estimate]:
    """What fits first; inside a verdict the fastest first, and what cannot run by how much it misses."""
    return sorted(estimates, key=lambda e: (VERDICT_ORDER[e.verdict], -speed(e), e.gpu.expected))


def speed(estimate: Estimate) -> float:
    """Expected tokens a second of one GPU; 0 where it does not fit, or no time can be given."""
    found = estimate.time if estimate.verdict != "no" else None
    return found.tokens_per_s_per_gpu.expected if isinstance(found, StepTime) else 0.0


def headline(model: ModelSpec, estimate: Estimate) -> str:
    """One line that restates the question: model, cluster, workload."""
    run, cluster = estimate.run, estimate.run.cluster
    work = run.workload
    gpus = f"{cluster.nodes} x {cluster.gpus_per_node}" if cluster.nodes > 1 else f"{cluster.gpus_per_node}"
    method = METHOD_WORDS[work.method]
    if work.has_adapters:
        method += f" rank {work.lora_rank}"
    return (
        f"{model.name} ({model.num_params / 1e9:.2f} B parameters, {run.model.num_trainable / 1e9:.3g} B train) on "
        f"{gpus} x {cluster.gpu.label} ({gib(cluster.gpu.memory_bytes)} GiB each): {method}, {work.precision}, "
        f"{batch_words(model, work.micro_batch, work.seq_len)}, stack {work.stack}"
    )


def batch_words(model: ModelSpec, micro_batch: int, seq_len: int) -> str:
    """``4 x 2048 tokens``, or ``64 images`` where a model sees nothing else."""
    return f"{micro_batch} images" if only_images(model) else f"{micro_batch} x {seq_len} tokens"


def bar(share: float, width: int) -> str:
    """A bar of ``width`` cells, filled to ``share`` of the card; ``▶`` at the end means more than the card has."""
    if share > 1:
        return "█" * (width - 1) + "▶"
    eighths = round(share * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (" ▏▎▍▌▋▊▉"[rest] if rest else "")).ljust(width, "·")
