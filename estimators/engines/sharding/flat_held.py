"""FSDP1: what stays around a moment, and what the reduction of one unit holds.

Sources: torch/distributed/fsdp/_runtime_utils.py (``_post_backward_hook``, ``_get_handle_to_prefetch``), torch 2.13.
"""

from __future__ import annotations

from estimators.engines.sharding import NOTHING, Moment, Position, Sizes, plus
from estimators.engines.sharding.flat import Laid, Plan, lay_out


def behind(laid: Laid, p: Position) -> int:
    """The root's gradients that wait for the end of backward when this unit works."""
    return p.of_run(laid.behind) or 0


def reduction(plan: Plan, laid: Laid, unit: Sizes, done: Sizes) -> Moment:
    """The flat gradient, its cast or padded copy, and the output, all until the call ends."""
    held = gradients_held(plan, laid.all + done * -1 + unit * -1, done)
    becomes_gradient = plan.accumulates != "sharded" and unit.reduce_out == unit.shard_gradients
    output = {"sharded gradients": unit.reduce_out} if becomes_gradient else {"reduced gradient": unit.reduce_out}
    if not becomes_gradient and unit.reduce_out != unit.shard_gradients and plan.sharded:
        output["sharded gradients"] = unit.shard_gradients
    # with accumulation: what was added to the flat gradient lives as long as the hooks on it run
    flat = unit.held * (2 if plan.accumulates == "whole" else 1)
    return plus(held, {"flat gradient": flat, "gradient to reduce": unit.reduce_in}, output)


def prefetched(plan: Plan, p: Position, *when: str) -> Sizes:
    """The unit in front, where it is gathered ahead at this point."""
    return p.previous if gathers_ahead(plan, *when) and p.previous is not None else NOTHING


def gathers_ahead(plan: Plan, *when: str) -> bool:
    return (plan.reshard or not plan.sharded) and plan.backward_prefetch in when


def delayed(plan: Plan, p: Position) -> Sizes:
    """The unit behind, whose gradients are joined only after this one's backward.

    ``forward_prefetch`` makes the views of a unit before the unit in front of it runs; autograd works newest first, so
    the join of those views (``SplitWithSizesBackward``) waits for that unit too.
    """
    return p.following if plan.forward_prefetch and p.following is not None else NOTHING


def kept(plan: Plan, units: Sizes) -> Sizes:
    """Units that stay gathered between forward and backward (SHARD_GRAD_OP)."""
    return units if plan.sharded and not plan.reshard else NOTHING


def gradients_held(plan: Plan, waiting: Sizes, done: Sizes) -> dict[str, int]:
    """Gradients for the optimizer: of the units that are done, and what earlier micro-steps left."""
    if plan.accumulates == "sharded":
        return {"sharded gradients": lay_out(plan).all.shard_gradients}
    whole = {"accumulated gradients": waiting.held} if plan.accumulates == "whole" else {}
    return {**whole, "sharded gradients": done.shard_gradients}
