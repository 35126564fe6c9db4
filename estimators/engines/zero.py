"""DeepSpeed ZeRO, stages 0 to 3: what the engine holds at each instant.

Read in order: ``zero_layout`` (how parameters are cut), then one file a stage - ``zero0``, ``zero12`` with
``zero_reduce`` (how gradients are collected), ``zero3`` with ``zero_fetch`` (what is gathered when) - and
``zero_offload`` (host and NVMe). Each stage answers with the moments that can be the largest of an instant, because an
instant lists what is alive at one moment; ``hold`` takes the largest.

Not here: activations, logits, and temporaries inside torch's optimizers.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from estimators.engines import zero0, zero3, zero12
from estimators.engines.zero_common import Terms, total
from estimators.result import Term
from estimators.run import Run

_STAGES = {0: zero0.moments, 1: zero12.moments, 2: zero12.moments, 3: zero3.moments}


def hold(run: Run) -> Mapping[str, tuple[Term, ...]]:
    """Terms alive at the largest moment of ``load``, ``forward``, ``backward``, ``reduce``, ``step`` and ``save``.

    Pure and cached by everything that it depends on.
    """
    return _held(_Question(run))


def moments(run: Run) -> Mapping[str, tuple[Terms, ...]]:
    """All candidates of each instant, for a caller that has something to add to each before it compares them."""
    return {name: tuple(found) for name, found in _STAGES[run.strategy.stage](run).items()}


class _Question:
    """A run, compared by what decides the answer: sequence length, batch and kernels do not."""

    __slots__ = ("_hash", "_key", "run")

    def __init__(self, run: Run) -> None:
        s, w, c = run.settings, run.workload, run.cluster
        strategy = run.strategy
        self.run = run
        self._key = (
            run.model, c.gpus_per_node, c.nodes, c.gpu.memory_bytes, strategy.base, strategy.optimizer, strategy.params,
            s.device, s.load_dtype, s.param_dtype, s.frozen_dtype, s.master_dtype, s.state_dtype, s.optimizer,
            s.optimizer_impl, s.versions.get("deepspeed"), w.grad_accum > 1, w.checkpointing, tuple(s.knobs.values()),
            tuple(s.knobs),
        )  # fmt: skip
        self._hash = hash(self._key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Question) and self._key == other._key


@lru_cache(maxsize=4096)
def _held(question: _Question) -> Mapping[str, tuple[Term, ...]]:
    run = question.run
    return {name: max(found, key=total) for name, found in _STAGES[run.strategy.stage](run).items()}
