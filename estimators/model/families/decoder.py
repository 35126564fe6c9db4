"""What decoder-only families share: the attention and MLP of Llama, rotary buffers, and the frame around the blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from estimators.errors import InputError, short
from estimators.model.families.common import Config, embedding, linear, norm
from estimators.model.spec import Buffer, ModelSpec, Parameter, Part
from estimators.values import dataclass

Parameters = tuple[Parameter, ...]


@dataclass(frozen=True, slots=True)
class Heads:
    """Attention heads: queries, key-value heads that groups of them share, elements of each."""

    queries: int
    kv: int
    size: int

    @property
    def width(self) -> int:
        """Features of all queries together."""
        return self.queries * self.size

    @property
    def kv_width(self) -> int:
        return self.kv * self.size


def read_heads(config: Config, *, must_divide: bool = False, kv_key: str = "num_key_value_heads") -> Heads:
    """Grouped-query heads: ``head_dim`` where given, else hidden_size / num_attention_heads.

    ``must_divide``: the class insists on the division even when ``head_dim`` is given.
    """
    queries = config.integer("num_attention_heads")
    size = config.raw("head_dim")
    if size is None or must_divide:
        divided = config.divided("hidden_size", "num_attention_heads")
    size = divided if size is None else config.integer("head_dim")
    kv = config.integer(kv_key, queries)
    if queries % kv:
        raise InputError(
            f"{config.where}: num_attention_heads {queries} is not a multiple of {kv_key} {kv}; correct one of them"
        )
    return Heads(queries, kv, size)


def attention(
    config: Config, heads: Heads, bias: bool = False, out_bias: bool = False, out: str = "o_proj"
) -> Parameters:
    """q, k, v and output projections under ``self_attn``."""
    hidden = config.integer("hidden_size")
    return (
        *linear("self_attn.q_proj", heads.width, hidden, bias),
        *linear("self_attn.k_proj", heads.kv_width, hidden, bias),
        *linear("self_attn.v_proj", heads.kv_width, hidden, bias),
        *linear(f"self_attn.{out}", hidden, heads.width, out_bias),
    )


def gated_mlp(config: Config, bias: bool = False) -> Parameters:
    """gate, up, down: SwiGLU and its relatives."""
    hidden, inner = config.integer("hidden_size"), config.integer("intermediate_size")
    return (
        *linear("mlp.gate_proj", inner, hidden, bias),
        *linear("mlp.up_proj", inner, hidden, bias),
        *linear("mlp.down_proj", hidden, inner, bias),
    )


def fused_gated_mlp(config: Config) -> Parameters:
    """gate and up in one tensor, then down."""
    hidden, inner = config.integer("hidden_size"), config.integer("intermediate_size")
    return (*linear("mlp.gate_up_proj", 2 * inner, hidden), *linear("mlp.down_proj", hidden, inner))


def up_down_mlp(config: Config, bias: bool = False) -> Parameters:
    """up, activation, down: no gate."""
    hidden, inner = config.integer("hidden_size"), config.integer("intermediate_size")
    return (*linear("mlp.up_proj", inner, hidden, bias), *linear("mlp.down_proj", hidden, inner, bias))


def block_norms(config: Config, *names: str, bias: bool = False) -> Parameters:
    """Norms of hidden_size, in this order."""
    hidden = config.integer("hidden_size")
    return tuple(parameter for name in names for parameter in norm(name, hidden, bias))


def rotary(config: Config, size: int, *, partial: float | None = None, module: str = "model.rotary_emb",
           kinds: tuple[str, ...] = ("",)) -> tuple[Buffer, ...]:  # fmt: skip
    """Inverse frequencies of rotary embeddings, twice: in use, and as they began.

    ``partial``: the default share of a head that is rotated, for families that rotate a part; None where the default
    kind of rotation takes the whole head (scaled kinds read the share from the config all the same).
    ``kinds``: names of layer types, for families that keep frequencies for each.
    """
    rope = config.raw("rope_scaling", config.raw("rope_parameters", {}))
    if not isinstance(rope, Mapping):
        raise InputError(f"{config.where}: rope_parameters is {short(rope)}; give an object")
    scaled = rope.get("rope_type", rope.get("type", "default")) != "default"
    share = 1.0
    if partial is not None or (scaled and kinds == ("",)):
        share = Config(rope, {}, f"{config.where}.rope_parameters").fraction(
            "partial_rotary_factor", config.fraction("partial_rotary_factor", 1.0 if partial is None else partial)
        )
    rotated = int(size * share)
    if rotated < 1 or (size > 4 and size % 2 and rotated == size):
        raise InputError(
            f"{config.where}: rotary embeddings turn pairs, and a head has {size} elements of which {rotated} turn; "
            "give an even head size"
        )
    return tuple(
        Buffer(f"{module}.{kind}{name}", ((rotated + 1) // 2,))
        for kind in kinds
        for name in ("inv_freq", "original_inv_freq")
    )


def layer_kinds(config: Config, pattern: int) -> tuple[str, ...]:
    """Which of full_attention and sliding_attention occur: every ``pattern``-th layer is full. Sorted."""
    layers = config.integer("num_hidden_layers")
    given = config.raw("layer_types")
    if given is None:
        return (*(("full_attention",) if layers >= pattern else ()), *(("sliding_attention",) if pattern > 1 else ()))
    known = {"full_attention", "sliding_attention"}
    if (
        not isinstance(given, list | tuple)
        or len(given) != layers
        or not all(isinstance(kind, str) and kind in known for kind in given)
    ):
        raise InputError(
            f"{config.where}: layer_types is {short(given)}; give full_attention or sliding_attention "
            f"for each of the {layers} layers"
        )
    return tuple(sorted(set(given)))


def root(*groups: Parameters, buffers: tuple[Buffer, ...] = ()) -> Part:
    """Parameters outside the blocks; whole names."""
    return Part(tuple(parameter for group in groups for parameter in group), buffers=buffers)


def causal_lm(
    config: Config,
    class_name: str,
    *,
    before: Part,
    blocks: tuple[Part, ...],
    after: Part,
    embedding_name: str,
    head: str = "lm_head",
    head_width: int | None = None,
    head_bias: bool = False,
    shapes: str = "checked",
) -> ModelSpec:
    """Embeddings, blocks, final norm, and the head: the embedding's own weight when tied, else a matrix of its own."""
    vocab, width = config.integer("vocab_size"), head_width or config.integer("hidden_size")
    tied = config.flag("tie_word_embeddings")
    lm_head = linear(head, vocab, width, head_bias)
    if tied:
        lm_head = lm_head[1:]
    parts = (before, *blocks, after, root(lm_head))
    return ModelSpec(
        name="",
        family=config.text("model_type"),
        class_name=class_name,
        parts=tuple(part for part in parts if part.parameters or part.buffers),
        config=config.values,
        tied={f"{head}.weight": f"{embedding_name}.weight"} if tied else {},
        embedding=embedding_name,
        head=head,
        shapes=shapes,
    )


def llama_frame(
    config: Config,
    class_name: str,
    block_class: str,
    block: Parameters,
    buffers: tuple[Buffer, ...],
    final_norm: Parameters | None = None,
    block_buffers: tuple[Buffer, ...] = (),
    **marks: Any,
) -> ModelSpec:
    """The frame of Llama: ``model.embed_tokens``, equal ``model.layers``, ``model.norm``, ``lm_head``."""
    hidden, layers = config.integer("hidden_size"), config.integer("num_hidden_layers")
    return causal_lm(
        config,
        class_name,
        before=root(embedding("model.embed_tokens", config.integer("vocab_size"), hidden)),
        blocks=(Part(block, layers, "model.layers.{}", class_name=block_class, buffers=block_buffers),),
        after=root(norm("model.norm", hidden) if final_norm is None else final_norm, buffers=buffers),
        embedding_name="model.embed_tokens",
        **marks,
    )
