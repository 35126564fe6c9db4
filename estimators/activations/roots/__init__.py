"""What stands outside the blocks: embeddings, patches and frames, projectors, and the heads that are no causal LM's.

A ``Joint`` runs before a run of blocks (``before`` counts ``ModelSpec.blocks``): the embeddings of a stack, the norm
at the end of another one, a projector. A family that is not named here has plain embeddings, which keep token ids
only, and the head of ``LlamaForCausalLM``. Modules are imported when a family needs them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import Any

from estimators.activations.builder import Builder
from estimators.activations.losses import Loss
from estimators.activations.tape import Tensor
from estimators.model.spec import ModelSpec
from estimators.values import NamedTuple

Piece = Callable[[Builder, Tensor], Tensor]
Head = Callable[[Builder, Tensor, Loss], Tensor]


class Joint(NamedTuple):
    """A piece of the root in front of a run of blocks.

    ``role``: whose config and batch it has (vision: a row is an image). ``from_data``: its input comes from the
    dataloader, and is counted there. ``restarts``: another stack begins, whose input has a gradient of its own.
    """

    before: int
    piece: Piece
    role: str = "decoder"
    from_data: bool = False
    restarts: bool = False


class Roots(NamedTuple):
    """The root of a network: joints in the order of the forward, and a head of its own.

    ``over``: shape of the head's input, where it is not [batch, tokens, width]. ``reals``: real numbers of a micro-batch,
    from (samples, images of a sample, patches of an image that has any size, 0 if not said); ``integers``: its whole
    numbers, from (samples, tokens); None: two a token.
    """

    joints: tuple[Joint, ...] = ()
    head: Head | None = None
    over: Callable[[Builder], tuple[int | str, ...]] | None = None
    reals: Callable[[Any, int, int], Any] | None = None  # numbers, or formulas of all of them
    integers: Callable[[Any, Any], Any] | None = None


# family -> module here, function of a ``ModelSpec`` in it
ROOTS: dict[str, tuple[str, str]] = {
    "gpt2": ("decoders", "positions"),
    "gpt_bigcode": ("decoders", "positions"),
    "gpt_neo": ("decoders", "positions"),
    "gptj": ("decoders", "dropped"),
    "codegen": ("decoders", "dropped"),
    "bloom": ("decoders", "normed"),
    "opt": ("decoders", "opt"),
    "bert": ("encoders", "bert"),
    "roberta": ("encoders", "roberta"),
    "xlm_roberta": ("encoders", "roberta"),
    "distilbert": ("encoders", "distilbert"),
    "electra": ("encoders", "electra"),
    "modernbert": ("encoders", "modernbert"),
    "t5": ("seq2seq", "t5"),
    "mt5": ("seq2seq", "t5"),
    "umt5": ("seq2seq", "t5"),
    "bart": ("seq2seq", "bart"),
    "mbart": ("seq2seq", "bart"),
    "pegasus": ("seq2seq", "bart"),
    "whisper": ("seq2seq", "whisper"),
    "vit": ("images", "vit"),
    "deit": ("images", "vit"),
    "dinov2": ("images", "dinov2"),
    "llava": ("vision_language", "llava"),
    "gemma3": ("vision_language", "gemma3"),
    "paligemma": ("vision_language", "paligemma"),
    "internvl": ("vision_language", "internvl"),
    "idefics3": ("vision_language", "idefics3"),
    "smolvlm": ("vision_language", "idefics3"),
    "mistral3": ("vision_language", "mistral3"),
    "qwen3_vl": ("vision_language", "qwen3_vl"),
    "qwen2_vl": ("vision_language", "qwen2_vl"),
    "qwen2_5_vl": ("vision_language", "qwen2_vl"),
}
PLAIN = Roots()


@lru_cache(maxsize=512)
def roots_of(model: ModelSpec) -> Roots:
    """The root of a network."""
    if model.family not in ROOTS:
        return PLAIN
    module, name = ROOTS[model.family]
    made: Roots = getattr(import_module(f"{__name__}.{module}"), name)(model)
    return made


def first_of(model: ModelSpec, *roles: str) -> int:
    """The first run of blocks with one of these roles."""
    return next(i for i, part in enumerate(model.blocks) if part.role in roles)
