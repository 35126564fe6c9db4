"""The network of a run: the real transformers class at any depth, adapters, checkpointing."""

from __future__ import annotations

from copy import deepcopy
from itertools import accumulate, pairwise
from typing import Any

import torch

from estimators.run import Run
from validate.cells.torch_engines import dtype
from validate.simulate.batches import has_images, image_token


def needy_ranks(run: Run) -> tuple[int, ...]:
    """The ranks one of which needs most at any instant.

    Of a sharded tensor the first rank never holds less than the others. ZeRO-1 and 2 cut all parameters as one vector
    and keep a gradient whole when any of it is the rank's (stage_1_and_2.py, ``get_flat_partition``): another rank may
    hold more when they step, while the first, which has the embedding and whose gradients come last, may in backward,
    and the last, which has the head and whose share comes first, when all activations are there.
    """
    if run.strategy.stage not in (1, 2):
        return (0,)
    ends = list(accumulate(p.numel for _, p in run.model.named_parameters() if p.trainable))
    cut = -(-ends[-1] // run.ranks)

    def held(rank: int) -> int:
        low, high = rank * cut, (rank + 1) * cut
        return sum(end - start for start, end in pairwise([0, *ends]) if start < high and end > low)

    most = max(range(run.ranks), key=held)
    return tuple(dict.fromkeys((0, most, run.ranks - 1)))


def build(run: Run) -> torch.nn.Module:
    """The module as the training script would hold it, in the dtype of loading."""
    import transformers

    values = {k: v for k, v in deepcopy(dict(run.model.config)).items() if k not in ("dtype", "torch_dtype")}
    kind = str(values.pop("model_type"))
    if kind not in transformers.CONFIG_MAPPING:
        raise NotImplementedError(f"transformers has no class for {kind}, and code of the hub is not run")
    config = transformers.CONFIG_MAPPING[kind](**values)
    config.use_cache = False
    if has_images(run):
        config.image_token_id = image_token(run.model)
    settings = run.settings
    loaded = settings.frozen_dtype if run.workload.has_adapters else settings.load_dtype
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = config.pad_token_id = 0
    made = getattr(transformers, run.model.class_name)
    eager = run.workload.attention == "eager" or not made._supports_sdpa  # transformers falls back likewise
    model = made._from_config(config, dtype=dtype(loaded), attn_implementation="eager" if eager else "sdpa")
    model.train()
    if run.workload.checkpointing == "full":
        model.gradient_checkpointing_enable()
    elif run.workload.checkpointing != "none":
        raise NotImplementedError(f"checkpointing {run.workload.checkpointing} cannot be simulated; full and none can")
    return _adapted(model, run) if run.workload.has_adapters else model


def with_fp32_outputs(model: Any, run: Run, device: str = "cpu") -> Any:
    """As accelerate's ``prepare_model``: autocast around forward, outputs copied to fp32; nothing for other stacks."""
    if not run.settings.knobs.get("fp32_outputs"):
        return model
    from accelerate.utils.operations import convert_outputs_to_fp32

    if run.settings.autocast:  # the engine's forward is under autocast already
        model.forward = convert_outputs_to_fp32(model.forward)
    else:
        model.forward = convert_outputs_to_fp32(
            torch.autocast(device, dtype(run.settings.compute_dtype))(model.forward)
        )
    return model


def _adapted(model: Any, run: Run) -> torch.nn.Module:
    import peft

    asked = run.workload
    if asked.method != "lora":
        raise NotImplementedError(f"method {asked.method} cannot be simulated; full and lora can")
    targets = asked.lora_targets if isinstance(asked.lora_targets, str) else list(asked.lora_targets)
    if targets == "attention":
        raise NotImplementedError("lora_targets attention cannot be simulated; give the names of modules")
    writes = "SEQ_2_SEQ_LM" if model.config.is_encoder_decoder else "CAUSAL_LM"
    kind = writes if hasattr(model, "prepare_inputs_for_generation") else None  # peft's model of no task in particular
    config = peft.LoraConfig(r=asked.lora_rank, target_modules=targets, task_type=kind)
    made = peft.get_peft_model(model, config, autocast_adapter_dtype=False)
    for parameter in made.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(dtype(run.settings.adapter_dtype))
    return made


def head(model: torch.nn.Module) -> torch.nn.Module | None:
    """The module with which the loss begins."""
    made = model.get_base_model() if hasattr(model, "get_base_model") else model
    found = made.get_output_embeddings()
    return found if found is not None else getattr(made, "classifier", None)
