"""The network of a real run: what a simulation builds, and beside it what needs real tensors or another library."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch

from estimators.errors import MissingDependency
from estimators.run import Run
from estimators.values import replace
from validate.cells.torch_engines import dtype
from validate.simulate.network import build as plain
from validate.simulate.network import with_fp32_outputs

QUANT_TYPES = {"nf4": False, "nf4-double": True}  # whether the absmax are quantised again


def build(run: Run, device: str) -> Any:
    """The module of a run. Raises ``NotImplementedError`` for what is not started here, ``MissingDependency``."""
    return with_fp32_outputs(_built(run, device), run, device)


def _built(run: Run, device: str) -> Any:
    method = run.workload.method
    if method == "qlora":
        return _quantised(run, device)
    if method == "freeze":
        return _frozen(plain(run), run)
    if run.workload.checkpointing in ("selective", "every-2", "offload"):
        whole = replace(run, workload=replace(run.workload, checkpointing="none"))
        return _recomputing(plain(whole), run)
    return plain(run)


def _frozen(model: Any, run: Run) -> Any:
    """A name reaches everything below the module path that it starts or ends a part of."""
    still = re.compile("|".join(rf"(^|\\.){re.escape(name)}(?![0-9])" for name in run.workload.freeze))
    for name, parameter in model.named_parameters():
        parameter.requires_grad = not still.search(name)
    return model


# -- recomputation ---------------------------------------------------------------------------------------------------


def _recomputing(model: Any, run: Run) -> Any:
    """torch's own wrappers around the blocks, as a plain loop uses them."""
    from functools import partial

    from torch.distributed.algorithms._checkpoint import checkpoint_wrapper as wrappers
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    kept = ("scaled_dot_product",)

    def policy(context: Any, operation: Any, *_: Any, **__: Any) -> Any:
        is_kept = any(piece in str(operation) for piece in kept)
        return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE

    how = run.workload.checkpointing
    wrap: Any = wrappers.checkpoint_wrapper
    if how == "selective":
        wrap = partial(wrap, context_fn=partial(create_selective_checkpoint_contexts, policy))
    elif how == "offload":
        wrap = lambda module: wrappers.offload_wrapper(wrappers.checkpoint_wrapper(module))  # noqa: E731
    names = {part.class_name for part in run.model.blocks}
    blocks = [m for m in model.modules() if type(m).__name__ in names]
    chosen = {id(m) for m in (blocks[::2] if how == "every-2" else blocks)}
    wrappers.apply_activation_checkpointing(model, checkpoint_wrapper_fn=wrap, check_fn=lambda m: id(m) in chosen)
    return model


# -- quantised base --------------------------------------------------------------------------------------------------


def _quantised(run: Run, device: str) -> Any:
    """Linear layers but the head in 4 bit, as transformers' bitsandbytes integration leaves them; adapters on top."""
    if run.workload.quant not in QUANT_TYPES:
        raise NotImplementedError(f"quant {run.workload.quant} is not started here; nf4 and nf4-double are")
    try:
        import bitsandbytes
    except ImportError:
        raise MissingDependency("method qlora needs bitsandbytes: pip install bitsandbytes") from None
    import peft

    work, settings = run.workload, run.settings
    base = replace(
        run, workload=replace(work, method="full"), settings=replace(settings, load_dtype=settings.frozen_dtype)
    )
    model: Any = plain(base)
    head = model.get_output_embeddings()
    storage = settings.knobs.get("quant_storage")
    for name, module in [(n, m) for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and m is not head]:
        packed = bitsandbytes.nn.Linear4bit(
            module.in_features, module.out_features, module.bias is not None, dtype(settings.compute_dtype),
            QUANT_TYPES[work.quant], "nf4", dtype(str(storage)) if storage else torch.uint8, device="meta",
        )  # fmt: skip
        packed.weight = bitsandbytes.nn.Params4bit(
            module.weight.data, requires_grad=False, compress_statistics=QUANT_TYPES[work.quant], quant_type="nf4",
            quant_storage=dtype(str(storage)) if storage else torch.uint8, module=packed,
        )  # fmt: skip
        packed.bias = module.bias
        parent, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(parent), leaf, packed.to(device))
    for parameter in model.parameters():
        parameter.requires_grad = False
    if work.kbit_prepare:
        model.is_loaded_in_4bit = True
        model = peft.prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    if work.checkpointing != "none":
        model.enable_input_require_grads()
    targets = work.lora_targets if isinstance(work.lora_targets, str) else list(work.lora_targets)
    config = peft.LoraConfig(r=work.lora_rank, target_modules=targets, task_type="CAUSAL_LM")
    made = peft.get_peft_model(model, config, autocast_adapter_dtype=False)
    for parameter in made.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(dtype(settings.adapter_dtype))
    return made


def side_tensors(model: Any) -> Iterator[torch.Tensor]:
    """What belongs to quantised weights beside them: absmax, codes, and those of the absmax."""
    for parameter in model.parameters():
        state = getattr(parameter, "quant_state", None)
        while state is not None:
            for name in ("absmax", "code", "offset"):
                if isinstance(tensor := getattr(state, name, None), torch.Tensor):
                    yield tensor
            state = getattr(state, "state2", None)
