"""DeepSpeed ZeRO, stages 0 to 3: what the engine holds at each instant.

Read in order: ``zero_layout`` (how parameters are cut), then one file a stage - ``zero0``, ``zero12`` with
``zero_reduce`` (how gradients are collected), ``zero3`` with ``zero_fetch`` (what is gathered when) - and
``zero_offload`` (host and NVMe). Each stage answers with the moments that can be the largest of an instant, because an
instant lists what is alive at one moment; ``hold`` takes the largest.

Not here: activations, logits, and temporaries inside torch's optimizers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from estimators.engines import zero0, zero3, zero12
from estimators.engines.zero_common import Terms
from estimators.run import Run
from estimators.sites import Site

_STAGES = {0: zero0.moments, 1: zero12.moments, 2: zero12.moments, 3: zero3.moments}


def moments_of(run: Run) -> Mapping[str, Sequence[tuple[Site, Terms]]]:
    """What may be the largest moment of each instant, with its place. Pure and cached by all that it depends on."""
    return _placed(_Question(run))


def moments(run: Run) -> Mapping[str, tuple[Terms, ...]]:
    """The candidates alone."""
    return {name: tuple(terms for _, terms in found) for name, found in moments_of(run).items()}


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
def _placed(question: _Question) -> Mapping[str, Sequence[tuple[Site, Terms]]]:
    return _STAGES[question.run.strategy.stage](question.run)
