"""Places in one optimizer step, so that what an engine holds and what the network keeps there can be added up."""

from __future__ import annotations

from estimators.values import NamedTuple


class Site(NamedTuple):
    """Where a moment stands.

    ``direction``: ``forward``, ``loss`` (the head and the loss, forwards), ``backward``, or ``outside`` (no activations;
    ``after``: the loop holds a micro-batch, as in the optimizer's step and from the engine's last work before the first).
    ``part`` counts the model's runs of blocks (``ModelSpec.blocks``); ``piece`` the blocks inside. ``START`` and ``END``
    as ``part`` are the embeddings (backward, ``during``: their gradient is made) and the final norm, head and loss.
    ``stage``: ``before`` the piece computes (of ``loss``: the head, before the loss; ``entering`` it),
    ``during`` its work, ``after`` it. Of a block's forward also ``entering`` its ``module`` of that path, ``inside``
    or ``behind`` it until the next is entered or left (without a path, until the first is), or ``through`` it; of its
    backward the same while the block runs forward once more, and ``during`` with ``made`` what comes after.
    ``gradients``: how gradients of the piece's weights count while it works: ``made`` all made so far are new memory,
    ``fresh`` only the one being made, ``held`` none (the engine's own amounts hold them); ``early`` looks only at what
    happens before the first of them, ``late`` only at what happens from it on (the engine's amounts hold them), and
    ``between`` the same with what is being made beside it (the engine's amounts hold those that are complete), and
    ``arrives`` only at the moments in which one of them is complete and a hook of the engine looks at it.
    ``made``: bytes of them that are complete; ``held`` and ``arrives`` look only at what happens then. -1: all of it.
    """

    direction: str
    part: int
    piece: int
    stage: str
    gradients: str = "held"
    made: int = -1
    module: str = ""


START, END = -1, 1 << 20  # as part: what comes before the first block, and after the last
OUTSIDE = Site("outside", -1, 0, "before")
IN_LOOP = Site("outside", -1, 0, "after")
