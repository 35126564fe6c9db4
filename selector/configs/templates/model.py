# ruff: noqa: TID253
# mypy: ignore-errors
"""The model in the dtype that the engine starts from."""

import os

import torch
import transformers

from selector.configs.templates.liger import fuse_loss
from selector.configs.templates.quantisation import quantisation
from selector.configs.templates.settings import (
    ATTENTION,
    AUTO_CLASS,
    BLOCK_CLASSES,
    LOAD_DTYPE,
    MODEL,
    TRUST_REMOTE_CODE,
)


def load_model(random_weights):
    """Pretrained weights; random ones of the same shapes where only memory and speed are asked for."""
    auto_class = getattr(transformers, AUTO_CLASS)
    common = {"dtype": getattr(torch, LOAD_DTYPE), "attn_implementation": ATTENTION}
    common |= {"quantization_config": quantisation()}  # when: quantised
    common |= {"device_map": {"": int(os.environ.get("LOCAL_RANK", 0))}}  # when: placed
    trust = {"trust_remote_code": TRUST_REMOTE_CODE}
    if random_weights:
        raise SystemExit("quantised weights come from a checkpoint: leave --random-weights out")  # when: quantised
        config = transformers.AutoConfig.from_pretrained("model", **trust)  # unless: quantised
        model = auto_class.from_config(config, **trust, **common)  # unless: quantised
    else:
        model = auto_class.from_pretrained(MODEL, **trust, **common)
    fuse_loss(model)  # when: fused_loss
    model.config.use_cache = False  # keys and values are for generation
    return model


def blocks(model):
    """The transformer blocks, in the order of forward."""
    return [module for module in model.modules() if type(module).__name__ in BLOCK_CLASSES]
