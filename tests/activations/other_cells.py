"""Blocks that are not dense causal decoders, real beside described: what each is fed, and what differs."""

from __future__ import annotations

import contextlib
import unittest.mock
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy
import torch
import transformers
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map
from transformers import masking_utils
from transformers.initialization import no_init_weights

from estimators.activations.attention import Kernels
from estimators.activations.builder import Precision
from estimators.activations.profile import Conditions, Profile, profile
from estimators.activations.tape import evaluate
from estimators.model.families import build
from estimators.model.methods import Recipe, _trained
from estimators.model.spec import ModelSpec, Parameter, Part
from tests.activations.cells import SMALL, _apply
from tests.activations.real import Sink, Truth, arguments_of, measure


@dataclass(frozen=True)
class Other:
    """One block of a model: ``block`` names its class, ``layer`` which of them; ``feed`` what the model is given."""

    model_type: str
    block: str
    config: Mapping[str, Any] = field(default_factory=dict)
    feed: str = "text"
    attention: str = "sdpa"
    method: str = "full"
    targets: str | tuple[str, ...] = "all-linear"
    precision: str = "bf16"
    batch: int = 2
    seq: int = 128
    layer: int = 0
    shared_elsewhere: bool = False  # what this block shares is counted in the first block of its stack (T5)

    def __str__(self) -> str:
        words = (self.model_type, self.block, self.attention, self.method, self.precision, f"{self.batch}x{self.seq}")
        return "-".join(words)

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.precision == "bf16" else torch.float32


def real_config(cell: Other) -> Any:
    config: Any = transformers.AutoConfig.for_model(cell.model_type, **cell.config)
    return config


MODE = FakeTensorMode(allow_non_fake_inputs=True)
_MODELS: dict[str, Any] = {}


def real_model(cell: Other, class_name: str) -> Any:
    """The model of a cell; the last one is kept, since neighbours differ in size and layer only."""
    key = repr((cell.model_type, cell.config, cell.attention, cell.method, cell.targets, cell.precision))
    if key not in _MODELS:
        _MODELS.clear()
        _MODELS[key] = built(cell, class_name)
    return _MODELS[key]


def built(cell: Other, class_name: str) -> Any:
    kernel = "eager" if cell.attention == "eager" else "sdpa"
    made: Any = getattr(transformers, class_name)
    with no_init_weights():
        model = made._from_config(real_config(cell), dtype=cell.dtype, attn_implementation=kernel)
    model.train()
    if cell.method == "lora":
        import peft

        targets = cell.targets if isinstance(cell.targets, str) else list(cell.targets)
        model = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=targets)).base_model.model
    return model


def fed(cell: Other, model: Any) -> dict[str, Any]:
    """The arguments of the model's forward."""
    ids = torch.zeros(cell.batch, cell.seq, dtype=torch.long)
    vision = getattr(model.config, "vision_config", model.config)
    if cell.feed == "text":
        return {"input_ids": ids}
    if cell.feed == "pair":
        return {"input_ids": ids, "decoder_input_ids": ids}
    if cell.feed == "audio":
        frames = 2 * model.config.max_source_positions
        mel = torch.zeros(cell.batch, model.config.num_mel_bins, frames, dtype=cell.dtype)
        return {"input_features": mel, "decoder_input_ids": ids}
    size = vision.image_size
    height, width = size if isinstance(size, list | tuple) else (size, size)
    pixels = torch.zeros(cell.batch, 3, height, width, dtype=cell.dtype)
    if cell.feed == "image":
        return {"pixel_values": pixels}
    assert cell.feed == "both", cell.feed
    return {"input_ids": ids, "pixel_values": pixels}


@contextlib.contextmanager
def real_apply() -> Iterator[None]:
    """Casting fake parameters needs another ``Module._apply``."""
    with unittest.mock.patch.object(torch.nn.Module, "_apply", _apply):
        yield


@contextlib.contextmanager
def nothing_padded() -> Iterator[None]:
    """Fake masks cannot prove that they are all ones; a plain run reads them and leaves the mask away."""
    with (
        unittest.mock.patch.object(masking_utils, "is_tracing", lambda *_: False),
        unittest.mock.patch.object(masking_utils, "fast_all", lambda _: True),
    ):
        yield


def no_cache(model: Any) -> dict[str, Any]:
    """Models that generate make a cache of keys and values even when training, unless told not to."""
    return {"use_cache": False} if model.can_generate() else {}


def tower_of(model: Any) -> Any:
    return model.model.vision_tower if hasattr(model.model, "vision_tower") else model.model.vision_model


def tower_inputs(cell: Other, model: Any) -> dict[str, Any]:
    size = model.config.vision_config.image_size
    side = size[0] if isinstance(size, list | tuple) else size
    inputs: dict[str, Any] = {"pixel_values": torch.zeros(cell.batch, 3, side, side, dtype=cell.dtype)}
    if cell.model_type == "mistral3":
        inputs["image_sizes"] = [(side, side)] * cell.batch
    return inputs


def arguments(cell: Other, model: Any, layer: Any) -> tuple[Any, Any]:
    """What the layer is called with; in the Qwen family's towers, made here, since a grid cannot be fake.

    The lengths of its images are a numpy array, whose numbers fake tensors leave alone.
    """
    if cell.feed == "tower":
        return arguments_of(model, layer, lambda: tower_of(model)(**tower_inputs(cell, model)))
    if cell.feed == "patches":
        config = model.config.vision_config
        count = (config.image_size // config.patch_size) ** 2
        return (torch.zeros(cell.batch, count, config.hidden_size, dtype=cell.dtype),), {"attention_mask": None}
    if cell.feed != "grid":
        return arguments_of(model, layer, lambda: model(**fed(cell, model), **no_cache(model)))
    config = model.config.vision_config
    width = getattr(config, "embed_dim", config.hidden_size)
    rows = cell.batch * config.image_patches
    hidden = torch.zeros(rows, width, dtype=cell.dtype)
    tables = tuple(torch.zeros(rows, width // config.num_heads) for _ in range(2))
    lengths = numpy.arange(cell.batch + 1) * config.image_patches
    return (hidden,), {"cu_seqlens": lengths, "position_embeddings": tables}


def real_block(cell: Other, class_name: str) -> Truth:
    """The truth of one block inside a model of few layers."""
    with real_apply(), MODE, _autocast(cell), nothing_padded():
        model = real_model(cell, class_name)
        model.zero_grad(set_to_none=True)
        layer = [m for m in model.modules() if type(m).__name__ == cell.block][cell.layer]
        args, kwargs = arguments(cell, model, layer)
        return measured(layer, args, kwargs, [*model.parameters(), *model.buffers()])


def _autocast(cell: Other) -> Any:
    return torch.autocast("cpu", torch.bfloat16, enabled=cell.precision == "amp")


def measured(layer: Any, args: Any, kwargs: Any, weights: Any) -> Truth:
    """The first tensor is the block's input; others with a gradient (encoder states, position bias) end in a sink."""
    kwargs = dict(kwargs)
    hidden = args[0] if args else kwargs.pop("hidden_states")
    leaf = torch.empty((), requires_grad=True)

    def cut(value: Any) -> Any:
        carries = isinstance(value, torch.Tensor) and value.requires_grad
        return Sink.apply(leaf, value) if carries else value

    rest, kwargs = tree_map(cut, tuple(args[1:])), tree_map(cut, kwargs)

    def call(made: dict[str, torch.Tensor]) -> Any:
        return layer(made.pop("hidden"), *rest, **kwargs)

    return measure(call, {"hidden": hidden}, (rest, kwargs), weights)


def spec_of(cell: Other) -> ModelSpec:
    spec = build(real_config(cell).to_dict())
    if cell.method == "lora":
        spec = _trained(spec, Recipe("lora", 4, cell.targets, (), (), "", None, "fp32", (), False))
    return spec


def _as_loaded(parameter: Parameter) -> Parameter:
    """Some routers stay in fp32 whatever dtype the model is loaded in."""
    return replace(parameter, dtype="fp32") if parameter.keep_fp32 == "16bit" else parameter


def part_of(cell: Other, spec: ModelSpec) -> Part:
    """The part that holds the block with that index among the blocks of its class."""
    parts = [part for part in spec.blocks if part.class_name == cell.block]
    first = 0
    for part in parts:
        first += part.count
        if cell.layer < first:
            return replace(part, parameters=tuple(_as_loaded(p) for p in part.parameters))
    raise AssertionError((cell.block, [part.class_name for part in spec.blocks]))


def conditions_of(cell: Other) -> Conditions:
    weights = "bf16" if cell.precision == "bf16" else "fp32"
    precision = Precision(weights, "bf16" if cell.precision == "amp" else None, weights)
    return Conditions(precision, Kernels(cell.attention), "cpu")


def differences(cell: Other) -> dict[str, Any]:
    """What differs, empty when everything is equal: ledger tensor by tensor, peaks within 0.5 %."""
    spec = spec_of(cell)
    ours = profile(part_of(cell, spec), spec, conditions_of(cell))
    return compared(cell, ours, real_block(cell, spec.class_name))


def compared(cell: Other, ours: Profile, truth: Truth) -> dict[str, Any]:
    def bytes_of(size: Any) -> int:
        return evaluate(size, cell.batch, cell.seq)

    found: dict[str, Any] = {}
    for name, real, lines in (("saved", truth.saved, ours.saved), ("shared", truth.shared, ours.shared)):
        if name == "shared" and cell.shared_elsewhere:
            continue
        kept = Counter(size for _, size in real if size > SMALL)
        mine = Counter(bytes_of(line.size) for line in lines if bytes_of(line.size) > SMALL)
        if kept != mine:
            names = {bytes_of(line.size): f"{line.operation}: {line.name}" for line in lines}
            found[f"{name}: real only"] = dict(kept - mine)
            found[f"{name}: ours only"] = {(size, names[size]): count for size, count in (mine - kept).items()}
    saved, output = ours.saved_bytes(cell.batch, cell.seq), bytes_of(ours.output)
    for name, measured, predicted in (
        ("forward", truth.forward, ours.peak(ours.forward, cell.batch, cell.seq)),
        ("backward", truth.backward, ours.peak(ours.backward, cell.batch, cell.seq) + saved + output),
    ):
        if abs(predicted / measured - 1) > 0.005:
            found[name] = f"{measured} measured, {predicted} predicted ({predicted / measured - 1:+.2%})"
    return found
