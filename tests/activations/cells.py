"""One real block beside its profile: the same model, kernel, method and precision on both sides."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from accelerate.utils import convert_to_fp32
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint
from transformers import masking_utils

from estimators.activations.attention import Kernels
from estimators.activations.builder import Precision
from estimators.activations.checkpointing import checkpointed
from estimators.activations.head import head
from estimators.activations.losses import Loss
from estimators.activations.profile import Conditions, Profile, profile
from estimators.activations.tape import evaluate
from estimators.model.families import build
from estimators.model.methods.adapters import insert_adapters
from estimators.model.methods.quantised import quantise
from estimators.model.spec import ModelSpec
from tests.activations.real import Truth, arguments_of, measure

# Fake tensors cannot prove that no sequence is packed, which would turn on a mask.
masking_utils.find_packed_sequence_indices = lambda position_ids: None

SMALL = 8  # bytes: scalars that torch keeps for products with numbers


@dataclass(frozen=True)
class Cell:
    """What is compared. ``precision``: bf16, fp32, or amp (fp32 weights under torch.autocast)."""

    model_type: str
    config: Mapping[str, Any] = field(default_factory=dict)
    attention: str = "sdpa"
    method: str = "full"
    precision: str = "bf16"
    padding: str = "none"
    batch: int = 2
    seq: int = 128
    layer: int = 1

    def __str__(self) -> str:
        extra = ",".join(f"{k}={v}" for k, v in self.config.items() if k in SHOWN)
        words = [self.model_type, self.attention, self.method, self.precision, self.padding, f"{self.batch}x{self.seq}"]
        return "-".join(w for w in [*words, extra] if w and w not in ("none", "full"))

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.precision == "bf16" else torch.float32


SHOWN = ("parallel_attn", "new_decoder_architecture", "alibi", "multi_query", "qk_layernorm", "use_parallel_residual")


def _apply(self: torch.nn.Module, fn: Any, recurse: bool = True) -> torch.nn.Module:
    """``Module._apply`` for fake parameters, whose contents cannot be swapped."""
    for module in self.modules() if recurse else (self,):
        for parameter in module._parameters.values():
            if parameter is not None:
                with torch.no_grad():
                    made = fn(parameter)
                if made is not parameter:
                    parameter.data = made
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = fn(buffer)
    return self


@contextlib.contextmanager
def fake() -> Iterator[FakeTensorMode]:
    original = torch.nn.Module._apply
    torch.nn.Module._apply = _apply
    try:
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            yield mode
    finally:
        torch.nn.Module._apply = original


def autocast(cell: Cell) -> Any:
    return torch.autocast("cpu", torch.bfloat16) if cell.precision == "amp" else contextlib.nullcontext()


def real_model(cell: Cell) -> torch.nn.Module:
    config = transformers.AutoConfig.for_model(cell.model_type, **cell.config)
    kernel = "eager" if cell.attention == "eager" else "sdpa"
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=cell.dtype, attn_implementation=kernel)
    model.train()
    if cell.method in ("lora", "dora"):
        import peft

        dora = cell.method == "dora"
        recipe = peft.LoraConfig(r=4, target_modules="all-linear", use_dora=dora, task_type="CAUSAL_LM")
        model = peft.get_peft_model(model, recipe).base_model.model
    return model


Wrap = Callable[[Any, torch.Tensor, Any, Any], Any]


def real_block(cell: Cell, class_name: str, wrap: Wrap | None = None) -> Truth:
    """The truth of one block inside a model of few layers."""
    with fake():
        return block_truth(cell, real_model(cell), class_name, wrap)


def block_truth(cell: Cell, model: torch.nn.Module, class_name: str, wrap: Wrap | None = None) -> Truth:
    layer = [m for m in model.modules() if type(m).__name__ == class_name][cell.layer]
    ids = torch.zeros(cell.batch, cell.seq, dtype=torch.long)
    mask = torch.ones_like(ids) if cell.padding == "right" else None
    with autocast(cell):
        args, kwargs = arguments_of(model, layer, lambda: model(ids, attention_mask=mask, use_cache=False))
    hidden = args[0] if args else kwargs["hidden_states"]
    rest = args[1:]
    kwargs = {k: v for k, v in kwargs.items() if k != "hidden_states"}

    def call(made: dict[str, torch.Tensor]) -> Any:
        with autocast(cell):
            if wrap is not None:
                return wrap(layer, made.pop("hidden"), rest, kwargs)
            return layer(made.pop("hidden"), *rest, **kwargs)

    return measure(call, {"hidden": hidden}, (rest, kwargs), [*model.parameters(), *model.buffers()])


def spec_of(cell: Cell) -> ModelSpec:
    config = transformers.AutoConfig.for_model(cell.model_type, **cell.config).to_dict()
    spec = build(config)
    if cell.method in ("lora", "dora"):
        # fp32: peft's autocast_adapter_dtype
        spec = insert_adapters(spec, "all-linear", 4, cell.method == "dora", (), "fp32")
    return spec


def conditions_of(cell: Cell) -> Conditions:
    weights = "bf16" if cell.precision == "bf16" else "fp32"
    precision = Precision(weights, "bf16" if cell.precision == "amp" else None, weights)
    return Conditions(precision, Kernels(cell.attention, padding=cell.padding), "cpu")


def our_block(cell: Cell) -> tuple[Profile, str]:
    spec = spec_of(cell)
    part = spec.blocks[0]
    return profile(part, spec, conditions_of(cell)), part.class_name


def differences(cell: Cell) -> dict[str, Any]:
    """What differs, empty when everything is equal: ledger tensor by tensor, peaks within 0.5 %."""
    ours, class_name = our_block(cell)
    return compared(ours, real_block(cell, class_name), cell)


def compared(ours: Profile, truth: Truth, cell: Cell) -> dict[str, Any]:
    """What differs between a profile and the truth."""

    def bytes_of(size: Any) -> int:
        return evaluate(size, cell.batch, cell.seq)

    found: dict[str, Any] = {}
    real = Counter(size for _, size in truth.saved if size > SMALL)
    mine = Counter(bytes_of(line.size) for line in ours.saved if bytes_of(line.size) > SMALL)
    if real != mine:
        found["kept but not predicted"], found["predicted but not kept"] = dict(real - mine), dict(mine - real)
    shared = Counter(size for _, size in truth.shared if size > SMALL)
    if shared != Counter(bytes_of(line.size) for line in ours.shared):
        found["shared"] = dict(shared), {line.name: bytes_of(line.size) for line in ours.shared}
    saved, output, held = (bytes_of(size) for size in (ours.saved_size, ours.output, ours.held))
    for name, measured, predicted in (
        ("forward", truth.forward, ours.peak(ours.forward, cell.batch, cell.seq)),
        ("backward", truth.backward, ours.peak(ours.backward, cell.batch, cell.seq) + saved + output + held),
    ):
        if abs(predicted / measured - 1) > 0.005:
            found[name] = f"{measured} measured, {predicted} predicted ({predicted / measured - 1:+.2%})"
    return found


def real_head(cell: Cell, fp32_outputs: bool = False, held: bool = False) -> Truth:
    """The truth of final norm, head and loss: the model's own forward over blocks that pass their input on."""
    with fake():
        return head_truth(cell, real_model(cell), fp32_outputs, held)


def head_truth(cell: Cell, model: Any, fp32_outputs: bool = False, held: bool = False) -> Truth:
    backbone = model.base_model if model.base_model is not model else model.model
    for layers in [m for m in backbone.modules() if isinstance(m, torch.nn.ModuleList)]:
        del layers[:]
    ids = torch.zeros(cell.batch, cell.seq, dtype=torch.long)
    width = model.get_output_embeddings().weight.shape[1]
    hidden = torch.empty(cell.batch, cell.seq, width, dtype=cell.dtype)

    def call(made: dict[str, torch.Tensor]) -> Any:
        with autocast(cell):
            outputs = model(inputs_embeds=made.pop("hidden"), labels=ids, use_cache=False)
        if fp32_outputs:
            outputs = convert_to_fp32(outputs)
        if held:
            HELD.append(outputs.logits)
        return outputs.loss

    try:
        return measure(call, {"hidden": hidden}, ids, [*model.parameters(), *model.buffers()])
    finally:
        HELD.clear()


HELD: list[torch.Tensor] = []


def head_differences(cell: Cell, fp32_outputs: bool = False, held: bool = False) -> dict[str, Any]:
    loss = Loss(fp32_outputs=fp32_outputs, held=held)
    # with no blocks the model's name for the words is one for what comes into the norm
    ours = head(spec_of(cell), conditions_of(cell), loss, holds_input=True)
    return compared(ours, real_head(cell, fp32_outputs, held), cell)


def checkpointing_differences(cell: Cell, reentrant: bool, tolerance: float) -> dict[str, Any]:
    """A block under torch.utils.checkpoint beside what full checkpointing makes of its profile."""
    ours, class_name = our_block(cell)
    kept = checkpointed(ours, "full", reentrant)[0]

    def wrapped(layer: Any, hidden: torch.Tensor, rest: Any, kwargs: Any) -> Any:
        return checkpoint(lambda x: layer(x, *rest, **kwargs), hidden, use_reentrant=reentrant)

    truth = real_block(cell, class_name, wrapped)
    sizes = (cell.batch, cell.seq)
    state = evaluate(kept.kept, *sizes) + evaluate(ours.output, *sizes)
    found = {}
    for name, measured, predicted in (
        ("kept", truth.after, evaluate(kept.kept, *sizes)),
        ("forward", truth.forward, ours.peak(kept.forward, *sizes)),
        ("backward", truth.backward, ours.peak(kept.backward, *sizes) + state),
    ):
        if abs(predicted / measured - 1) > tolerance:
            found[name] = f"{measured} measured, {predicted} predicted ({predicted / measured - 1:+.2%})"
    return found


def qlora_differences(cell: Cell) -> dict[str, Any]:
    """A block with 4-bit linears and adapters, in real tensors: bitsandbytes cannot quantise fake ones."""
    import bitsandbytes
    import peft

    spec = build(transformers.AutoConfig.for_model(cell.model_type, **cell.config).to_dict())
    spec = insert_adapters(quantise(spec, "nf4-double"), "all-linear", 4, False, (), "fp32")
    part = spec.blocks[0]
    model = real_model(cell)
    for name, linear in list(model.named_modules()):
        if not isinstance(linear, torch.nn.Linear) or name == "lm_head":
            continue
        small = bitsandbytes.nn.Linear4bit(
            linear.in_features, linear.out_features, linear.bias is not None, torch.bfloat16, quant_type="nf4"
        )
        small.weight = bitsandbytes.nn.Params4bit(linear.weight.data, requires_grad=False, quant_type="nf4")
        owner, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(owner), leaf, small.to("cpu"))
    model.is_loaded_in_4bit = True  # peft asks before it takes its layer for 4-bit bases
    recipe = peft.LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    model = peft.get_peft_model(model, recipe).base_model.model
    return compared(profile(part, spec, conditions_of(cell)), block_truth(cell, model, part.class_name), cell)
