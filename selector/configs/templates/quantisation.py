# ruff: noqa: TID253
# mypy: ignore-errors
"""4-bit or 8-bit base weights (bitsandbytes)."""

import torch
from transformers import BitsAndBytesConfig

from selector.configs.templates.settings import COMPUTE_DTYPE, DOUBLE_QUANT, QUANT_STORAGE, QUANT_TYPE


def quantisation():
    """bitsandbytes: the frozen base; adapters stay in their own dtype."""
    return BitsAndBytesConfig(load_in_8bit=True)  # when: int8
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=QUANT_TYPE,
        bnb_4bit_use_double_quant=DOUBLE_QUANT,
        bnb_4bit_compute_dtype=getattr(torch, COMPUTE_DTYPE),
        bnb_4bit_quant_storage=getattr(torch, QUANT_STORAGE),
    )
