"""Compare a spec with the transformers class that its config names, built on the meta device.

Expected values always come from transformers; nothing here reads a formula.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import transformers
from torch import nn
from transformers.pytorch_utils import Conv1D

from estimators.model.spec import ModelSpec

DTYPES = {
    torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16",
    torch.int64: "int64", torch.int32: "int32", torch.bool: "bool", torch.uint8: "uint8", torch.int8: "int8",
}  # fmt: skip


def build_meta(config_dict: Mapping[str, Any], class_name: str) -> nn.Module:
    """The real class on the meta device, in fp32 as its constructor leaves it."""
    values = dict(config_dict)
    config = transformers.CONFIG_MAPPING[values.pop("model_type")](**values)
    with torch.device("meta"):
        model = getattr(transformers, class_name)(config)
    assert isinstance(model, nn.Module)
    return model


def module_kind(module: nn.Module) -> str:
    """The kind of Parameter.kind: what tools that treat modules by type see."""
    name = type(module).__name__
    if isinstance(module, nn.Linear):
        return "linear"
    if isinstance(module, Conv1D):
        return "conv1d"
    if isinstance(module, nn.Embedding):
        return "embedding"
    if "Norm" in name:
        return "norm"
    if name.startswith("Conv") and isinstance(module, nn.modules.conv._ConvNd):
        return "conv"
    return "experts" if "Experts" in name else "other"


def module_name(model: nn.Module, wanted: object) -> str:
    """The qualified name of a submodule; empty for None."""
    return next((name for name, module in model.named_modules() if module is wanted), "") if wanted is not None else ""


def owner(model: nn.Module, name: str) -> nn.Module:
    return model.get_submodule(name.rpartition(".")[0])


def keep_fp32(model: Any, name: str) -> str:
    """How ``from_pretrained`` treats a parameter: the class's two lists, matched as whole parts of the name."""

    def listed(modules: Any) -> bool:
        return any(re.search(rf"(^|\.){m}($|\.)", name) for m in modules or ())

    if listed(model._keep_in_fp32_modules_strict):
        return "16bit"
    return "fp16" if listed(model._keep_in_fp32_modules) else ""


def spec_buffers(spec: ModelSpec) -> Iterator[tuple[str, tuple[int, ...], str, bool]]:
    for part in spec.parts:
        for index in range(part.count):
            stem = part.prefix.format(part.first + index)
            for b in part.buffers:
                yield f"{stem}.{b.name}" if stem else b.name, b.shape, b.dtype, b.persistent


def model_buffers(model: nn.Module) -> Iterator[tuple[str, tuple[int, ...], str, bool]]:
    for name, tensor in model.named_buffers():
        persistent = name.rpartition(".")[2] not in owner(model, name)._non_persistent_buffers_set
        yield name, tuple(tensor.shape), DTYPES[tensor.dtype], persistent


def model_tied(model: nn.Module) -> dict[str, str]:
    """Each repeated name of a shared parameter, and the name under which it is listed first."""
    first: dict[int, str] = {}
    tied: dict[str, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) in first:
            tied[name] = first[id(parameter)]
        else:
            first[id(parameter)] = name
    return tied


def model_blocks(model: Any) -> list[tuple[str, str]]:
    """(name, class) of each module that ``_no_split_modules`` lists, outermost only, in order."""
    wanted = set(model._no_split_modules or ())
    found: list[tuple[str, str]] = []
    for name, module in model.named_modules():
        inside = any(name.startswith(f"{outer}.") for outer, _ in found)
        if type(module).__name__ in wanted and not inside and not isinstance(module, nn.Embedding):
            found.append((name, type(module).__name__))
    return found


def compare_with_transformers(spec: ModelSpec, config_dict: Mapping[str, Any], model: nn.Module | None = None) -> None:
    """Assert that ``spec`` equals the real class: names, shapes, order, kinds, fp32 marks, ties, buffers, modules.

    ``model`` spares building it from ``config_dict`` and ``spec.class_name`` again. Buffers are compared as a set:
    their order decides nothing.
    """
    real: Any = model if model is not None else build_meta(config_dict, spec.class_name)
    ours = [(name, p.shape, p.kind, p.keep_fp32) for name, p in spec.named_parameters()]
    theirs = [
        (name, tuple(p.shape), module_kind(owner(real, name)), keep_fp32(real, name))
        for name, p in real.named_parameters()
    ]
    assert [o[:2] for o in ours] == [t[:2] for t in theirs]
    assert ours == theirs
    assert spec.num_params == sum(p.numel() for p in real.parameters())
    assert dict(spec.tied) == model_tied(real)
    assert sorted(spec_buffers(spec)) == sorted(model_buffers(real))
    assert spec.embedding == module_name(real, real.get_input_embeddings())
    assert spec.head == module_name(real, real.get_output_embeddings())
    blocks = [
        (part.prefix.format(part.first + index), part.class_name)
        for part in spec.parts if part.is_block for index in range(part.count)
    ]  # fmt: skip
    assert blocks == model_blocks(real)
