"""Values that no estimate depends on, the same in every file: what a first run takes where the user says nothing."""

from __future__ import annotations

from typing import Any

from estimators.run import Run

# Sources: Llama 2 paper (arXiv 2307.09288, section 2.2: betas) and the recipes of torchtune (learning rates).
LEARNING_RATE = {"full": 2e-5, "freeze": 2e-5, "lora": 1e-4, "dora": 1e-4, "qlora": 1e-4}
BETAS = (0.9, 0.95)
EPS = 1e-8
WEIGHT_DECAY = 0.0
GRADIENT_CLIPPING = 1.0
MOMENTUM = 0.9
STEPS = 100
SAVE_EVERY = 50
SEED = 42
LORA_ALPHA_PER_RANK = 2  # peft scales adapters by alpha / rank

# Name, value, reason: of what every file has alike.
REASONS = (
    (
        "betas",
        f"{BETAS[0]}, {BETAS[1]}",
        "AdamW's for language models (Llama 2 paper); torch's own second one is 0.999",
    ),
    ("eps, weight decay", f"{EPS:g}, {WEIGHT_DECAY:g}", "torch's eps; no decay in a short fine-tuning"),
    ("scheduler", "constant", "no warm-up to plan for: choose one once the number of steps is known"),
    ("steps, save every", f"{STEPS}, {SAVE_EVERY}", "a first run; yours follow from your data"),
    ("seed", str(SEED), "the same in every file"),
)


def learning_rate(run: Run) -> float:
    return LEARNING_RATE[run.workload.method]


def optimizer_params(run: Run) -> dict[str, Any]:
    """Parameters of DeepSpeed's ``optimizer`` block, by the optimizer's kind."""
    params: dict[str, Any] = {"lr": learning_rate(run), "weight_decay": WEIGHT_DECAY}
    if run.settings.optimizer in ("adamw", "adamw-fused"):
        params |= {"betas": list(BETAS), "eps": EPS}
    if run.settings.optimizer == "muon":
        params |= {"momentum": MOMENTUM}
    return params


def global_batch(run: Run) -> int:
    """Sequences per optimizer step of all ranks: micro-batch x accumulation x ranks, in every file the same."""
    return run.workload.micro_batch * run.workload.grad_accum * run.ranks
