"""What checkpointing keeps of a block between forward and backward, and what its backward needs on top.

Sources: torch/utils/checkpoint.py (reentrant ``CheckpointFunction``, non-reentrant ``_checkpoint_without_reentrant``),
transformers/modeling_layers.py ``GradientCheckpointingLayer``.
"""

from __future__ import annotations

from functools import lru_cache

from estimators.activations.profile import Profile
from estimators.activations.steps import Steps, above
from estimators.activations.tape import ZERO, Moment, Saved, Size, minus, numel, plus, times, total
from estimators.activations.visits import Visits
from estimators.model.spec import Part
from estimators.values import dataclass, field, replace

ATTENTION = "scaled_dot_product_attention"
ATTENTION_OUTPUTS = ("attention output", "logsumexp", "random state")


@dataclass(frozen=True, eq=False)
class Kept:
    """One block under a way of checkpointing.

    ``kept``: bytes on the GPU from its forward to its backward; ``host``: bytes moved to the host instead.
    ``forward``: as of a profile. ``backward``: moments of recompute and gradient, above (kept + incoming gradient);
    ``steps``: of what comes behind the recompute, by the gradients that are there. ``visits``: ``forward`` by modules;
    ``again``: the recompute likewise.
    """

    kept: Size
    host: Size
    forward: tuple[Moment, ...]
    backward: tuple[Moment, ...]
    recomputes: bool
    steps: Steps = field(default_factory=dict)
    visits: Visits = field(default_factory=Visits)
    again: Visits = field(default_factory=Visits)


@lru_cache(maxsize=8192)
def checkpointed(profile: Profile, how: str, reentrant: bool = False, products: Size = ZERO) -> tuple[Kept, ...]:
    """How the blocks of a run are treated, in turn: one entry, or two for ``every-2``. Formulas A.4-A.7.

    none: everything stays. full: the input stays, the block is run again. selective: the outputs of fused attention
    stay too, and it is not run again (with eager attention, whose scores no policy saves, as full). offload: the input
    goes to the host and comes back. every-2: full for the first of two blocks, none for the second.
    """
    if how == "none":
        return (_whole(profile),)
    if how == "every-2":
        return (_recomputed(profile, (), reentrant), _whole(profile))
    if how == "selective":
        return (_recomputed(profile, _attention(profile), reentrant, products),)
    made = _recomputed(profile, (), reentrant)
    if how != "offload":
        return (made,)
    back = tuple(_above(m, profile.boundary) for m in made.backward)
    steps, again = above(made.steps, profile.boundary), made.again.beside(profile.boundary)
    return (replace(made, kept=ZERO, host=profile.boundary, backward=back, steps=steps, again=again),)


def _whole(profile: Profile) -> Kept:
    return Kept(profile.saved_size, ZERO, profile.forward, profile.backward, False, profile.steps, profile.visits)


def _attention(profile: Profile) -> tuple[Saved, ...]:
    return tuple(s for s in profile.saved if s.operation == ATTENTION and s.name in ATTENTION_OUTPUTS)


def every_second_product(part: Part, element: int) -> Size:
    """Outputs of a block's linears that torchtitan's policy keeps: the first, the third and so on, in forward order
    (torchtitan/distributed/activation_checkpoint.py: every second ``mm`` is recomputed)."""
    linears = [p for p in part.parameters if p.kind == "linear" and len(p.shape) == 2]
    return total(times(numel(("B", "S", p.shape[0])), element) for p in linears[::2])


def _recomputed(profile: Profile, spared: tuple[Saved, ...], reentrant: bool, beyond: Size = ZERO) -> Kept:
    """Recompute starts from the input with the incoming gradient alive; then backward plays with everything saved.

    Without reentrance the input lives until the block is done, and recompute stops at the last tensor that is needed.
    With it the block's output is made again, and the incoming gradient is held until the block is done: counted here
    over the whole backward, up to one output too much where the largest moment comes early.
    """
    extra = plus(total(s.size for s in spared), beyond)
    kept = plus(plus(profile.boundary, profile.arguments), extra)
    made = minus(ZERO, kept)
    again = [_above(m, made) for m in profile.forward]
    counted = profile.saved_size if profile.keeps_input else plus(profile.saved_size, profile.boundary)
    base = minus(plus(counted, plus(beyond, profile.arguments)), kept)
    if reentrant:
        base = plus(base, plus(profile.output, profile.output))
    played = [_above(m, base) for m in profile.backward]
    forward = tuple(_above(m, extra) for m in profile.forward_no_grad) if extra != ZERO else profile.forward_no_grad
    visits = profile.visits_no_grad.beside(extra)
    steps, modules = above(profile.steps, base), profile.visits.beside(made)
    return Kept(kept, ZERO, forward, (*again, *played), True, steps, visits, modules)


def _above(moment: Moment, size: Size) -> Moment:
    return replace(moment, live=plus(moment.live, size))
