"""What each engine holds, one file an engine, in the order in which it happens.

An engine module has one public function, ``hold(run) -> dict[instant name, tuple[Term, ...]]``, for the instants
``load``, ``forward``, ``backward``, ``reduce``, ``step`` and ``save``. It knows parameters, gradients, master weights,
optimizer states and the engine's own buffers and gathered units; activations, logits and the runtime come from
elsewhere.
"""

from __future__ import annotations

from importlib import import_module

from estimators.result import Term
from estimators.run import Run

MODULES = {"torch": "ddp", "ddp": "ddp", "fsdp2": "fsdp2", "fsdp1": "fsdp1", "deepspeed": "zero"}


def hold(run: Run) -> dict[str, tuple[Term, ...]]:
    """Terms of the run's engine at each instant."""
    return import_module(f"estimators.engines.{MODULES[run.strategy.engine]}").hold(run)  # type: ignore[no-any-return]
