"""What mixtures of experts share: routers, stacked experts, and the frame around blocks of several kinds.

transformers 5 keeps the experts of a block in two 3-D parameters (kind ``experts``), not in one linear each.
"""

from __future__ import annotations

from collections.abc import Iterable

from estimators.errors import InputError
from estimators.model.families.common import Config, embedding, linear, norm
from estimators.model.families.decoder import Parameters, causal_lm, root
from estimators.model.families.pieces import Buffers
from estimators.model.spec import ModelSpec, Parameter, Part


def qk_norms(query: int, key: int) -> Parameters:
    """Norms of queries and keys, of a head each or of whole projections."""
    return (*norm("self_attn.q_norm", query), *norm("self_attn.k_norm", key))


def layer_norms(hidden: int, bias: bool = False) -> Parameters:
    """The two norms of a pre-norm block."""
    return (*norm("input_layernorm", hidden, bias), *norm("post_attention_layernorm", hidden, bias))


def expert_count(config: Config, *keys: str) -> int:
    """Experts under the first key that is given; the last key carries the default. At most all serve a token."""
    key = next((k for k in keys if config.raw(k) is not None), keys[-1])
    count, used = config.integer(key), config.integer("num_experts_per_tok", 1)
    if used > count:
        raise InputError(f"{config.where}: num_experts_per_tok {used} exceeds {key} {count}; correct one of them")
    return count


def router(name: str, experts: int, hidden: int, keep_fp32: str = "") -> Parameters:
    return (Parameter(f"{name}.weight", (experts, hidden), "other", keep_fp32),)


def stacked_experts(name: str, experts: int, hidden: int, width: int) -> Parameters:
    """``gate_up_proj`` [experts, 2 width, hidden], ``down_proj`` [experts, hidden, width]."""
    return (
        Parameter(f"{name}.gate_up_proj", (experts, 2 * width, hidden), "experts"),
        Parameter(f"{name}.down_proj", (experts, hidden, width), "experts"),
    )


def gated_mlp(name: str, hidden: int, width: int, bias: bool = False) -> Parameters:
    return (
        *linear(f"{name}.gate_proj", width, hidden, bias),
        *linear(f"{name}.up_proj", width, hidden, bias),
        *linear(f"{name}.down_proj", hidden, width, bias),
    )


def layers(parameters: Parameters, class_name: str, count: int = 1, first: int = 0, buffers: Buffers = ()) -> Part:
    return Part(parameters, count, "model.layers.{}", first, class_name, buffers=buffers)


def decoder_only(
    config: Config,
    class_name: str,
    blocks: Iterable[Part],
    buffers: Buffers,
    final_norm: Parameters | None = None,
    head_bias: bool = False,
) -> ModelSpec:
    """Llama's frame around blocks of several kinds."""
    hidden = config.integer("hidden_size")
    return causal_lm(
        config,
        class_name,
        before=root(embedding("model.embed_tokens", config.integer("vocab_size"), hidden)),
        blocks=tuple(blocks),
        after=root(final_norm or norm("model.norm", hidden), buffers=buffers),
        embedding_name="model.embed_tokens",
        head_bias=head_bias,
    )
