"""How a script makes the optimizer of a run: one function, written out for the optimizer that was settled."""

from __future__ import annotations

from estimators.run import Run
from selector.configs.refusal import refuse

_ADAMW = "lr=LEARNING_RATE, betas=BETAS, eps=EPS, weight_decay=WEIGHT_DECAY"
_FLAVOUR = {"foreach": ", foreach=True", "fused": ", fused=True", "single": ", foreach=False"}
_BNB = {"adamw-8bit": "AdamW8bit", "paged-adamw": "PagedAdamW", "paged-adamw-8bit": "PagedAdamW8bit", "lion": "Lion"}

# ``optim`` of TrainingArguments (transformers/training_args.py OptimizerNames).
TRAINER_NAMES = {
    "adamw": "adamw_torch", "adamw-fused": "adamw_torch_fused", "adamw-8bit": "adamw_bnb_8bit",
    "paged-adamw": "paged_adamw_32bit", "paged-adamw-8bit": "paged_adamw_8bit", "adafactor": "adafactor",
    "lion": "lion_32bit", "sgd": "sgd",
}  # fmt: skip


def expression(run: Run) -> tuple[str, str]:
    """The import that is needed, and the call, over ``parameters``."""
    name, impl = run.settings.optimizer, run.settings.optimizer_impl
    if name in _BNB and impl.startswith("bnb"):
        betas = "betas=BETAS, weight_decay=WEIGHT_DECAY"
        return "import bitsandbytes", f"bitsandbytes.optim.{_BNB[name]}(parameters, lr=LEARNING_RATE, {betas})"
    if name in ("adamw", "adamw-fused"):  # ds-cpu: accelerate puts DeepSpeed's CPU Adam in its place
        return "import torch", f"torch.optim.AdamW(parameters, {_ADAMW}{_FLAVOUR.get(impl, '')})"
    if name in ("sgd", "sgd-momentum"):
        momentum = ", momentum=MOMENTUM" if name == "sgd-momentum" else ""
        return "import torch", f"torch.optim.SGD(parameters, lr=LEARNING_RATE{momentum}, weight_decay=WEIGHT_DECAY)"
    if name == "adafactor":
        return "import torch", "torch.optim.Adafactor(parameters, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)"
    raise refuse(
        run, f"its script does not make the optimizer {name}", "give adamw, or stack torch with zero3 for muon"
    )


def function(run: Run) -> str:
    """The function ``make_optimizer`` of a script, with its import before it."""
    needed, call = expression(run)
    if len(call) > 105:
        head, _, words = call.partition("(")
        rows = "".join(f"        {word},\n" for word in words.removesuffix(")").split(", "))
        call = f"{head}(\n{rows}    )"
    return f"{needed}\n\n\ndef make_optimizer(parameters):\n    return {call}\n"


def trainer_name(run: Run) -> str:
    """The value of ``optim``; SGD with momentum is handed over as a class, which ``optim`` has no word for."""
    name = "sgd" if run.settings.optimizer == "sgd-momentum" else run.settings.optimizer
    if name not in TRAINER_NAMES:
        raise refuse(
            run, f"the Trainer has no optimizer {name}", "give adamw, or zero1 to zero3, which DeepSpeed steps"
        )
    return TRAINER_NAMES[name]
