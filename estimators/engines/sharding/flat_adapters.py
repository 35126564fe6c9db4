"""FSDP1's backward through blocks whose adapters are units inside them (peft's ``fsdp_auto_wrap_policy``).

Forward ends with a block behind its adapters, so backward meets the block, its adapters from the last, and then the
block in front (torch/distributed/fsdp/_exec_order_utils.py, ``record_post_forward``). So it goes, as torch 2.13 does it:

    backward  a unit gathers the one that it will find next: the block in front waits for the first adapter's turn, and
              is there only while the rest of the block works (_runtime_utils.py, ``_prefetch_handle``)
    reduce    each adapter's gradient when it is there, amid the block's work; its own weights are freed before
    after     the frozen part has no gradient: it is freed when all tensors given to the block have theirs
              (``_register_post_backward_reshard_only_hook``); those that share the encoder's states go together
"""

from __future__ import annotations

from collections.abc import Iterator

from estimators.engines.sharding import NOTHING, Moment, Placed, Position, plus
from estimators.engines.sharding.flat import Inside, Laid, Plan
from estimators.engines.sharding.flat_held import behind, gathers_ahead, gradients_held, kept, prefetched, reduction
from estimators.sites import Site


def inside(plan: Plan, laid: Laid, p: Position) -> Inside | None:
    """Of a block with adapters; nothing where views of them are made ahead (``forward_prefetch``): they wait then."""
    return laid.inside[p.part] if not plan.forward_prefetch and 0 <= p.part < len(laid.inside) else None


def backward(plan: Plan, laid: Laid, p: Position, block: Inside) -> Iterator[Placed]:
    """From one adapter's gradient to the next; from the first adapter's turn on with the block in front."""
    around, last = _around(plan, laid, p), len(block.adapters)
    ahead, turn = prefetched(plan, p, "pre", "post"), last - (plan.backward_prefetch == "pre")
    came = gathers_ahead(plan, "pre", *(("post",) if p.following else ()))  # the block itself, from behind
    own = {"cast shards": p.unit.cast if plan.reshard and not came else 0}
    yield p.site("backward", "before"), plus(around, _so_far(plan, laid, p, block, 0), own)
    for number, made in enumerate(block.made[_from(plan, p, turn) :], _from(plan, p, turn)):
        there = {"gathered units": ahead.gathered if number >= turn else 0}
        here = plus(around, _so_far(plan, laid, p, block, number), there)
        yield p.site("backward", "during")._replace(made=made), here
        if number == turn and ahead.cast:
            yield _arrival(p, made), {**here, "cast shards": ahead.cast}


def reductions(plan: Plan, laid: Laid, p: Position, block: Inside) -> Iterator[Placed]:
    """Adapter after adapter from the last, each with the unit that was gathered ahead."""
    around, ahead = _around(plan, laid, p), prefetched(plan, p, "pre", "post")
    units = (*block.adapters, ahead)
    first = _from(plan, p, len(block.adapters) - 1)
    for number, adapter in enumerate(block.adapters[first:], first):
        following = {"gathered units": units[number + 1].gathered if ahead is not NOTHING else 0}
        done = p.later + block.done(number)
        yield _arrival(p, block.made[number + 1]), plus(around, following, reduction(plan, laid, adapter, done))


def _from(plan: Plan, p: Position, turn: int) -> int:
    """The first moment to look at: all of a run's ends; inside, where the others lie on a line between those of the
    ends, only what has the block in front beside it, which the first block may not have."""
    return 0 if p.index in (0, plan.model.blocks[p.part].count - 1) else turn


def _around(plan: Plan, laid: Laid, p: Position) -> Moment:
    return {
        "gathered root unit": laid.root.gathered,
        "gathered units": kept(plan, p.earlier).gathered + p.unit.gathered + _waiting(plan, laid, p),
        "root gradients": behind(laid, p),
    }


def _waiting(plan: Plan, laid: Laid, p: Position) -> int:
    """Frozen parts of the blocks behind, where the stack's first block has the last gradient of what all were given."""
    if not plan.sharded:
        return 0
    counted = zip(plan.model.blocks[p.part :], laid.inside[p.part :], strict=True)
    behind_it = [part.count * block.base.gathered for part, block in counted if block and block.waits]
    block = laid.inside[p.part]
    return sum(behind_it) - (p.index + 1) * block.base.gathered if block and block.waits else 0


def _so_far(plan: Plan, laid: Laid, p: Position, block: Inside, number: int) -> Moment:
    done = p.later + block.done(number)
    return gradients_held(plan, laid.all + done * -1, done)


def _arrival(p: Position, made: int) -> Site:
    return p.site("backward", "during", "arrives")._replace(made=made)
