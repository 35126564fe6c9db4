"""What BERT and its relatives share: the post-norm block, and a masked-language head tied to the word embedding."""

from __future__ import annotations

from estimators.model.families.common import Config, embedding, linear, norm
from estimators.model.families.decoder import Parameters
from estimators.model.families.pieces import position_ids, present, refuse, root, under
from estimators.model.spec import Buffer, ModelSpec, Parameter, Part

# What BertConfig, RobertaConfig and ElectraConfig agree on
DEFAULTS = {
    "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
    "max_position_embeddings": 512, "type_vocab_size": 2, "tie_word_embeddings": True,
}  # fmt: skip


def embeddings(config: Config, prefix: str, width: int, positions_last: bool = False) -> Part:
    """Words, positions, token types and their norm; RoBERTa lists the positions last."""
    words = embedding("word_embeddings", config.integer("vocab_size"), width)
    count = config.integer("max_position_embeddings")
    positions = embedding("position_embeddings", count, width)
    types = embedding("token_type_embeddings", config.integer("type_vocab_size"), width)
    rest = (*types, *norm("LayerNorm", width, bias=True))
    buffers = (
        position_ids(f"{prefix}.position_ids", count),
        Buffer(f"{prefix}.token_type_ids", (1, count), "int64"),
    )
    order = (*words, *rest, *positions) if positions_last else (*words, *positions, *rest)
    return root(under(prefix, order), buffers=buffers, role="encoder")


def attention(config: Config, width: int, query: str, key: str, value: str, extra: Parameters = ()) -> Parameters:
    """Self-attention, its output projection and norm, under ``attention``."""
    hidden = config.integer("hidden_size")
    return (
        *(p for name in (query, key, value) for p in linear(f"attention.self.{name}", width, hidden, bias=True)),
        *extra,
        *linear("attention.output.dense", hidden, width, bias=True),
        *norm("attention.output.LayerNorm", hidden, bias=True),
    )


def feed_forward(config: Config) -> Parameters:
    hidden, inner = config.integer("hidden_size"), config.integer("intermediate_size")
    return (
        *linear("intermediate.dense", inner, hidden, bias=True),
        *linear("output.dense", hidden, inner, bias=True),
        *norm("output.LayerNorm", hidden, bias=True),
    )


def blocks(config: Config, prefix: str, class_name: str) -> Part:
    config.divided("hidden_size", "num_attention_heads")
    refuse(config, "is_decoder", "add_cross_attention")
    hidden = config.integer("hidden_size")
    block = (*attention(config, hidden, "query", "key", "value"), *feed_forward(config))
    return Part(block, config.integer("num_hidden_layers"), f"{prefix}.{{}}", class_name=class_name, role="encoder")


def masked_lm(config: Config, class_name: str, before: tuple[Part, ...], transform: Parameters, bias: str, words: str,
              head: str) -> ModelSpec:  # fmt: skip
    """The head's bias comes first, since it is registered on the head itself; its weight is the word embedding.

    ``bias``, ``words`` and ``head`` are names; where ``bias`` is not the head's own, the two are tied as well. In an
    untied model both are separate parameters, listed last.
    """
    rows = config.integer("vocab_size")
    outer = Parameter(bias, (rows,), "linear" if bias == f"{head}.bias" else "other")
    own = linear(head, rows, config.integer("embedding_size", config.integer("hidden_size")), bias=True)
    tied = {f"{head}.weight": f"{words}.weight"}
    if bias == f"{head}.bias":
        last = own[1:] if config.flag("tie_word_embeddings") else own
        parameters = (*transform, *last)
    else:
        tied[f"{head}.bias"] = bias
        parameters = (outer, *transform, *(() if config.flag("tie_word_embeddings") else own))
    return ModelSpec(
        name="",
        family=config.text("model_type"),
        class_name=class_name,
        parts=present(*before, root(parameters, role="encoder")),
        config=config.values,
        tied=tied if config.flag("tie_word_embeddings") else {},
        embedding=words,
        head=head,
    )
