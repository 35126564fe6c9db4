"""Host RAM of a node beside what an engine offloads: the copies that loading a checkpoint makes.

Per node, never per cluster. Source of the copies: transformers ``from_pretrained`` reads the checkpoint into host RAM
on every rank, unless parameters are partitioned as they are built (``zero.Init``): then rank 0 alone reads values, and
the others names and shapes (``PreTrainedModel._load_pretrained_model``, except for quantised weights). Weights that
are quantised on the way to a card of their own (``device_map``) are read tensor by tensor and stay nowhere else.
"""

from __future__ import annotations

from estimators.result import Term
from estimators.run import Run
from estimators.workload import DTYPE_BYTES


def host_terms(run: Run) -> dict[str, tuple[Term, ...]]:
    """Host terms by instant, for one node."""
    return {"load": load_terms(run)}


def load_terms(run: Run) -> tuple[Term, ...]:
    """One whole model per loading rank, in the dtype in which it is read: formula H.1 of ``docs/formulas-memory.md``."""
    settings, ranks = run.settings, run.cluster.gpus_per_node
    whole = run.model.num_params * DTYPE_BYTES[settings.load_dtype]
    if run.workload.method == "qlora" and not (
        run.strategy.is_sharded and (run.strategy.sharding or run.strategy.stage == 3)
    ):
        return ()
    loading = 1 if settings.knobs.get("zero_init") and run.workload.method != "qlora" else ranks
    return (
        Term("checkpoint copies", "params", whole * loading, f"{loading} x parameters x {settings.load_dtype}", "host"),
    )
