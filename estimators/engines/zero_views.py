"""Gathered weights that autograd keeps although ZeRO-3 has let them go.

Releasing a parameter gives its ``data`` another tensor (partition_parameters.py, ``free_param``); FSDP empties the storage
itself. An operation that keeps the parameter, as a linear layer does, sees the new data. One that keeps a view of it keeps
the gathered storage: stacked experts, which transformers turns before ``grouped_mm`` (integrations/moe.py,
``_grouped_linear``), stay from forward to their block's backward; with adapters on them the product keeps the merged
weight, and the merge keeps the factors, turned (peft/tuners/lora/layer.py, ``get_delta_factors``). Recomputation makes
what it keeps inside backward. Formula Z.9 of ``docs/formulas-memory.md``.
"""

from __future__ import annotations

from functools import lru_cache

from estimators.engines.zero_layout import AFTER, Spot
from estimators.model.spec import ModelSpec, Part
from estimators.run import Run
from estimators.sites import END, START


def kept_views(run: Run, spot: Spot, forward: bool) -> int:
    """Elements at a place of the step that no longer count as gathered."""
    if run.workload.checkpointing != "none":
        return 0
    each = _each(run.model, int(run.settings.knobs["param_persistence_threshold"]))
    if not any(each):
        return 0
    counts = [part.count for part in run.model.blocks]
    part, index = spot
    if part == START:
        done = (0, 0)
    elif part == END:
        done = (len(counts), 0)
    elif index == AFTER:
        done = (part + 1, 0)
    else:  # backwards a block gathers its weights anew, beside those that it kept
        done = (part, index if forward else index + 1)
    total = sum(size * count for size, count in zip(each[: done[0]], counts, strict=False))
    total += each[done[0]] * done[1] if done[1] else 0
    most = sum(size * count for size, count in zip(each, counts, strict=True))
    if _behind(run.model) < int(run.settings.knobs["max_reuse_distance"]):
        most -= each[-1]  # used again so soon that they are still gathered when backward begins
    return min(total, most)


@lru_cache(maxsize=256)
def _each(model: ModelSpec, threshold: int) -> tuple[int, ...]:
    """Of each run of blocks, elements that one block keeps a view of; what is never let go does not count."""
    return tuple(sum(numel for numel in _of(part) if numel > threshold) for part in model.blocks)


def _behind(model: ModelSpec) -> int:
    """Elements that are used between the last block's forward and its backward."""
    last = max(at for at, part in enumerate(model.parts) if part.is_block)
    return sum(p.numel for part in model.parts[last + 1 :] for p in part.parameters)


def _of(part: Part) -> list[int]:
    """Elements of each parameter of a block."""
    stacks = {p.name.rpartition(".")[2]: p for p in part.parameters if p.kind == "experts" and len(p.shape) == 3}
    down = stacks.get("down_proj")
    if down is not None and (wrapper := down.name.find(".base_layer.")) > 0:
        factors = f"{down.name[:wrapper]}."
        return [p.numel for p in part.parameters if p.name.startswith(factors) and ".lora_" in p.name]
    up = stacks.get("gate_up_proj") or stacks.get("up_proj")
    if down is None or up is None or up.shape[1] == down.shape[2]:  # [in, out]: used as they are
        return []
    return [p.numel for p in stacks.values()]
