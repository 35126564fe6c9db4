"""The optimizer that a run's settings name, made as a training script makes it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from estimators.errors import MissingDependency
from estimators.run import Run

LEARNING_RATE = 1e-5
BITSANDBYTES = {
    "adamw-8bit": "AdamW8bit", "paged-adamw": "PagedAdamW", "paged-adamw-8bit": "PagedAdamW8bit", "lion": "Lion",
}  # fmt: skip


def optimizer_of(parameters: Iterable[Any], run: Run) -> Any:
    """An optimizer over ``parameters``. Raises ``MissingDependency`` for what is not installed."""
    name, how = run.settings.optimizer, run.settings.optimizer_impl
    trained = list(parameters)
    chosen = {"fused": how == "fused", "foreach": how == "foreach"}
    if name in ("adamw", "adamw-fused"):
        fused_by_engine = how in ("ds-fused", "ds-cpu")  # torch's fused kernel holds what DeepSpeed's kernels hold
        return torch.optim.AdamW(trained, lr=LEARNING_RATE, **({"fused": True} if fused_by_engine else chosen))
    if name in ("sgd", "sgd-momentum"):
        return torch.optim.SGD(trained, lr=LEARNING_RATE, momentum=0.9 if name == "sgd-momentum" else 0.0, **chosen)
    if name in BITSANDBYTES:
        return getattr(_bitsandbytes(), BITSANDBYTES[name])(trained, lr=LEARNING_RATE)
    if name == "adafactor":
        if how == "hf":
            from transformers.optimization import Adafactor

            return Adafactor(trained, lr=LEARNING_RATE, scale_parameter=False, relative_step=False)
        return torch.optim.Adafactor(trained, lr=LEARNING_RATE)
    if name == "muon" and hasattr(torch.optim, "Muon"):
        return torch.optim.Muon([p for p in trained if p.ndim == 2], lr=LEARNING_RATE)
    raise NotImplementedError(f"optimizer {name} ({how}) is not started here")


def _bitsandbytes() -> Any:
    try:
        import bitsandbytes.optim
    except ImportError:
        raise MissingDependency("this optimizer is bitsandbytes': pip install bitsandbytes") from None
    return bitsandbytes.optim
