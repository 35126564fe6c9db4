"""Tiny models with sizes that nothing divides, and a spec read from the live module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from estimators.model.spec import Buffer, ModelSpec, Parameter, Part

LLAMA: Mapping[str, Any] = {
    "model_type": "llama", "hidden_size": 96, "intermediate_size": 250, "num_hidden_layers": 3,
    "num_attention_heads": 6, "num_key_value_heads": 2, "vocab_size": 1009, "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}  # fmt: skip
LLAMA_SMALL_HEAD: Mapping[str, Any] = {**LLAMA, "vocab_size": 131}  # blocks, not the root, are the largest units
QWEN_TIED: Mapping[str, Any] = {
    "model_type": "qwen2", "hidden_size": 72, "intermediate_size": 190, "num_hidden_layers": 4,
    "num_attention_heads": 6, "num_key_value_heads": 3, "vocab_size": 1501, "max_position_embeddings": 64,
    "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
TORCH_NAMES = {"torch.float32": "fp32", "torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.int64": "int64"}


def build(config: Mapping[str, Any], dtype: str = "fp32") -> Any:
    """The transformers class of a config, with random weights in ``dtype``, as a training loop would hold it."""
    import torch
    import transformers

    values = dict(config)
    made = transformers.CONFIG_MAPPING[values.pop("model_type")](**values)
    made.use_cache = False
    torch_dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    return transformers.AutoModelForCausalLM.from_config(made, dtype=torch_dtype)


def add_lora(model: Any, rank: int, dtype: str) -> Any:
    """peft's LoRA on every linear module but the head; adapters in ``dtype``."""
    import peft
    import torch

    wrapped = peft.get_peft_model(model, peft.LoraConfig(r=rank, target_modules="all-linear", task_type="CAUSAL_LM"))
    torch_dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
    for parameter in wrapped.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(torch_dtype)
    return wrapped


def spec_of(model: Any, config: Mapping[str, Any]) -> ModelSpec:
    """What the estimators read, taken from a live module: every parameter in order, blocks apart.

    A tensor's dtype is written down where it differs from the others of its kind (trainable or frozen).
    """
    blocks = _blocks(model)
    parts: list[Part] = []
    run: list[Parameter] = []
    for name, parameter in model.named_parameters():
        stem = next((b for b in blocks if name.startswith(b + ".")), "")
        last = parts[-1].prefix if parts else None
        if stem != (last if last is not None else "\0"):
            parts.append(Part((), prefix=stem, class_name=blocks.get(stem, "")))
            run = []
        run.append(_parameter(name.removeprefix(stem + ".") if stem else name, parameter))
        parts[-1] = Part(tuple(run), prefix=stem, class_name=blocks.get(stem, ""), buffers=parts[-1].buffers)
    tied = dict(_tied(model))
    parts[-1] = Part(
        parts[-1].parameters, prefix=parts[-1].prefix, class_name=parts[-1].class_name, buffers=_buffers(model)
    )
    embedding = _name_of(model, model.get_input_embeddings())
    return ModelSpec(
        "tiny", str(config["model_type"]), type(model).__name__, _merged(parts), dict(config), tied=tied,
        embedding=embedding, head=_name_of(model, model.get_output_embeddings()), shapes="module",
    )  # fmt: skip


def _merged(parts: list[Part]) -> tuple[Part, ...]:
    """Equal neighbouring blocks become one part with a count, as in a spec from a formula."""
    merged: list[Part] = []
    for part in parts:
        before = merged[-1] if merged else None
        if before and part.is_block and before.parameters == part.parameters and not part.buffers:
            merged[-1] = Part(part.parameters, before.count + 1, before.prefix, class_name=part.class_name)
        else:
            stem = part.prefix.rpartition(".")[0] + ".{}" if part.is_block else ""
            merged.append(Part(part.parameters, 1, stem, class_name=part.class_name, buffers=part.buffers))
    return tuple(merged)


def _parameter(name: str, parameter: Any) -> Parameter:
    kind = "embedding" if "embed" in name else "norm" if "norm" in name else "linear"
    dtype = TORCH_NAMES[str(parameter.dtype)]
    return Parameter(name, tuple(parameter.shape), kind, trainable=parameter.requires_grad, dtype=dtype)


def _blocks(model: Any) -> dict[str, str]:
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    wanted = set(base._no_split_modules or ())
    return {name: type(m).__name__ for name, m in model.named_modules() if type(m).__name__ in wanted}


def _tied(model: Any) -> list[tuple[str, str]]:
    first: dict[int, str] = {}
    found: list[tuple[str, str]] = []
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) in first:
            found.append((name, first[id(parameter)]))
        else:
            first[id(parameter)] = name
    return found


def _buffers(model: Any) -> tuple[Buffer, ...]:
    return tuple(Buffer(name, tuple(b.shape), TORCH_NAMES[str(b.dtype)]) for name, b in model.named_buffers())


def _name_of(model: Any, wanted: Any) -> str:
    return next((name for name, module in model.named_modules() if module is wanted), "")
