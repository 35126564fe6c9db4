"""Products of 16-bit matrices on a CPU that has no instruction for them.

There torch multiplies element by element: 0.1 GFLOP/s where a factor is not transposed, minutes for the gradient of a
vocabulary's head. Here a product is taken in fp32 by pieces and rounded once; what it returns has the size, dtype and
layout that torch's own has, and that is all that a measurement of bytes looks at.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

ATEN = torch.ops.aten
PRODUCTS = frozenset({ATEN.mm.default, ATEN.bmm.default, ATEN.addmm.default})
PIECE = 2**23  # elements of a factor that are in fp32 at a time


@cache
def is_slow(dtype: torch.dtype) -> bool:
    """Whether this CPU has no fast product of matrices of this dtype."""
    asked = {torch.bfloat16: "_is_mkldnn_bf16_supported", torch.float16: "_is_mkldnn_fp16_supported"}.get(dtype)
    return asked is not None and not getattr(torch.ops.mkldnn, asked)()


def replaces(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether ``product`` answers this operation: real 16-bit matrices of a CPU, nothing scaled."""
    if func not in PRODUCTS or kwargs:
        return False
    return all(
        type(a) in (torch.Tensor, torch.nn.Parameter) and a.device.type == "cpu" and is_slow(a.dtype) for a in args
    )


def product(func: Any, args: Any) -> torch.Tensor:
    """What ``mm``, ``bmm`` or ``addmm`` returns."""
    *bias, first, second = args
    made: torch.Tensor
    if first.dim() == 3:
        made = first.new_empty(first.shape[0], first.shape[1], second.shape[2])
        for one, left, right in zip(made, first, second, strict=True):
            _multiply(left, right, one, None)
        return made
    made = first.new_empty(first.shape[0], second.shape[1])
    _multiply(first, second, made, bias[0] if bias else None)
    return made


def _multiply(first: torch.Tensor, second: torch.Tensor, into: torch.Tensor, bias: torch.Tensor | None) -> None:
    step = max(1, PIECE // max(first.shape[1], 1))
    for top in range(0, first.shape[0], step):
        left = first[top : top + step].float()
        for start in range(0, second.shape[1], step):
            made = left @ second[:, start : start + step].float()
            if bias is not None:
                made += bias.expand(into.shape)[top : top + step, start : start + step]
            into[top : top + step, start : start + step] = made
