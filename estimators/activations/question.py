"""What a run asks of the ledgers: precision, kernels, loss and checkpointing as its stack and versions make them."""

from __future__ import annotations

from estimators.activations.attention import Kernels
from estimators.activations.builder import Precision
from estimators.activations.fused import APART, FAMILIES
from estimators.activations.losses import Loss
from estimators.model.spec import ModelSpec
from estimators.run import Run, Settings
from estimators.stacks.table import STACKS
from estimators.stacks.versions import at_least, is_reentrant
from estimators.values import NamedTuple
from estimators.workload import Workload, unsized

UPCASTS_IN_LOSS = "4.46"  # transformers: loss/loss_utils.py takes the loss out of the models
COMPILES_LOSS = "0.1"  # torchtitan/components/loss.py build_cross_entropy_loss
# Models whose own loss left the logits as they were (modeling_*.py before 4.46, Qwen's own code).
NEVER_UPCAST = ("gpt2", "gpt_bigcode", "gpt_neox", "opt", "bloom", "falcon", "mpt", "qwen")
LIGER_EVERYWHERE = ("swift", "llamafactory", "axolotl")  # fused loss means all of Liger's kernels
LITGPT_METHODS = ("full", "lora", "qlora")
DROPS_QUANTISED_INPUT = "0.43.2"  # bitsandbytes pull request 1270
ADDS_COPIES = "0.6.2"  # liger-kernel: torch.mm(...).float() in the place of torch.addmm(out=...)
ACCUMULATES = "0.8.1"  # liger-kernel: torch.addmm(out_dtype=torch.float32) where the sum is fp32
SHIFTS_LABELS = "4.49"  # transformers pull request 35646: labels are padded, logits no longer copied
# T5Attention.forward sets ``requires_grad`` of its zeros where checkpointing is on (modeling_t5.py, modeling_mt5.py).
ZEROS_LEARN = ("t5", "mt5")
MASKS_IMAGES = ("gemma3",)  # tokens of an image see each other: a mask of their own for every sample
# Loops whose frame holds the outputs during backward. Trainer.compute_loss drops them when it returns the loss, as do
# the scripts of ``selector.configs.templates`` (torch, deepspeed, accelerate); torchtune deletes its logits.
HOLDS_OUTPUTS = ("composer",)


class Question(NamedTuple):
    """All of a run that its activations depend on, besides batch and sequence."""

    model: ModelSpec
    precision: Precision
    kernels: Kernels
    device: str
    checkpointing: str
    input_gradient: bool
    loss: Loss
    reentrant: bool = False
    retains: bool = False
    image_patches: int = 0
    keeps_products: bool = False  # selective checkpointing by operation, as torchtitan does it


_QUESTIONS: dict[tuple[ModelSpec, Settings, Workload], Question] = {}
MOST_QUESTIONS = 8192


def question_of(run: Run) -> Question:
    """What a run asks of the ledgers; the same for every batch and sequence."""
    key = (run.model, run.settings, unsized(run.workload))
    if key not in _QUESTIONS:
        if len(_QUESTIONS) >= MOST_QUESTIONS:
            _QUESTIONS.clear()
        _QUESTIONS[key] = _question(run)
    return _QUESTIONS[key]


def _question(run: Run) -> Question:
    settings, work = run.settings, run.workload
    managed = run.strategy.engine in ("fsdp1", "fsdp2", "deepspeed")
    fp32_outputs = bool(settings.knobs.get("fp32_outputs"))
    casts = settings.compute_dtype if settings.autocast or (fp32_outputs and managed) else None
    stored = settings.compute_dtype if managed else settings.param_dtype
    if work.has_adapters and not managed:
        stored = settings.frozen_dtype
    stack = STACKS[work.stack]
    frozen_units = run.strategy.engine == "fsdp1" and work.has_adapters and stack.adapters_apart
    late = settings.adapter_dtype if frozen_units and (stack.trainer or stack.accelerate) else ""  # scripts tell peft
    precision = Precision(stored, casts, "", run.strategy.engine in ("fsdp1", "fsdp2"), late)
    padding = "right" if run.model.family in MASKS_IMAGES else work.padding
    kernels = Kernels(
        run.attention,
        work.loss == "fused" and work.stack in LIGER_EVERYWHERE and run.model.family in FAMILIES,
        run.model.family not in APART, padding,
        library="litgpt" if work.stack == "litgpt" and work.method in LITGPT_METHODS else "transformers",
        keeps_quantised_input=not at_least(settings.versions["bitsandbytes"], DROPS_QUANTISED_INPUT),
        zeros_learn=work.checkpointing != "none" and run.model.family in ZEROS_LEARN,
    )  # fmt: skip
    loss = _loss(run, fp32_outputs)
    reentrant = is_reentrant(stack.trainer, settings.versions)
    return Question(run.model, precision, kernels, settings.device, work.checkpointing, _input_gradient(run), loss,
                    reentrant, reentrant and frozen_units and work.checkpointing != "none", work.image_patches or 0,
                    work.stack == "torchtitan" and work.checkpointing == "selective")  # fmt: skip


def _loss(run: Run, fp32_outputs: bool) -> Loss:
    """How this stack and its transformers make a loss of logits, and whether its loop holds the outputs."""
    work, stack = run.workload, STACKS[run.workload.stack]
    fused = work.loss == "fused"
    if work.stack == "litgpt":
        never = "never" if work.loss == "chunked" else "loss"
        return Loss(work.loss, work.loss_kernel, held=not fused, upcasts=never)
    if work.stack == "torchtitan" and work.compile and at_least(run.settings.versions["torchtitan"], COMPILES_LOSS):
        return Loss(work.loss, work.loss_kernel or "compiled")
    have = run.settings.versions["transformers"]
    hugging_face = stack.trainer or stack.accelerate
    in_model = hugging_face and not at_least(have, UPCASTS_IN_LOSS)
    upcasts = "loss" if not in_model else "never" if run.model.family in NEVER_UPCAST else "model"
    copies = hugging_face and not at_least(have, SHIFTS_LABELS)
    return Loss(
        work.loss,
        work.loss_kernel,
        fp32_outputs and not fused,
        run.strategy.engine == "ddp" and bool(run.settings.knobs.get("find_unused_parameters")) and not fused,
        work.stack in HOLDS_OUTPUTS and not fused,
        work.stack == "trl",
        adds_copies=at_least(run.settings.versions["liger-kernel"], ADDS_COPIES),
        accumulates=at_least(run.settings.versions["liger-kernel"], ACCUMULATES),
        upcasts=upcasts,
        shifts="logits" if copies else "labels",
    )


def _input_gradient(run: Run) -> bool:
    """Whether a gradient flows into the first block: embeddings train, or transformers asks for it (adapters)."""
    if run.workload.has_adapters and run.workload.checkpointing != "none":
        return True
    first = run.model.parts[0]
    return not first.is_block and any(p.trainable for p in first.parameters)
