"""Post-norm encoders: transformers/models/{bert,roberta,electra,distilbert}/modeling_*.py; and modernbert's."""

from __future__ import annotations

from estimators.activations.attention import Scores
from estimators.activations.blocks.two_way import Names, attention, head_size, merged, padding_mask
from estimators.activations.builder import Builder
from estimators.activations.tape import Tensor

BERT = Names("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense")
DISTILBERT = Names("attention.q_lin", "attention.k_lin", "attention.v_lin", "attention.out_lin")


def block(b: Builder, hidden: Tensor) -> Tensor:
    """BertLayer: norm(dropout(dense(...)) + input), twice."""
    drop = b.fraction("hidden_dropout_prob", default=0.1)
    inner = b.fraction("attention_probs_dropout_prob", default=0.1)
    attended = bert_attention(b, hidden, inner, drop)
    output = feed_forward(b, attended, drop)
    return b.norm(b.add(output, attended), "output.LayerNorm")


def bert_attention(b: Builder, hidden: Tensor, inner: float, drop: float) -> Tensor:
    output = b.dropout(attention(b, hidden, BERT, head_size(b), inner, mask=padding_mask(b)), drop)
    return b.norm(b.add(output, hidden), "attention.output.LayerNorm")


def feed_forward(b: Builder, x: Tensor, drop: float) -> Tensor:
    made = b.activation(b.text("hidden_act", default="gelu"), b.module(x, "intermediate.dense"))
    return b.dropout(b.module(made, "output.dense"), drop)


def distilbert(b: Builder, hidden: Tensor) -> Tensor:
    """TransformerBlock of DistilBERT: no dropout behind attention."""
    output = attention(b, hidden, DISTILBERT, head_size(b), b.fraction("attention_dropout", default=0.1),
                       mask=padding_mask(b))  # fmt: skip
    output = b.norm(b.add(output, hidden), "sa_layer_norm")
    made = distilbert_feed_forward(b, output)
    return b.norm(b.add(made, output), "output_layer_norm")


def distilbert_feed_forward(b: Builder, x: Tensor) -> Tensor:
    x = b.module(x, "ffn.lin1")
    x = b.activation(b.text("activation", default="gelu"), x)
    x = b.module(x, "ffn.lin2")
    return b.dropout(x, b.fraction("dropout", default=0.1))


def modernbert(b: Builder, hidden: Tensor) -> Tensor:
    """ModernBertEncoderLayer: pre-norm, rotation in fp32, gated feed-forward; the first block has no attention norm."""
    normed = b.norm(hidden, "attn_norm") if b.weight("attn_norm.weight") else hidden
    attended = modernbert_attention(b, normed)
    del normed
    hidden = b.add(hidden, attended)
    return b.add(hidden, modernbert_mlp(b, b.norm(hidden, "mlp_norm")))


def modernbert_attention(b: Builder, hidden: Tensor) -> Tensor:
    size, count = head_size(b), b.number("num_attention_heads")
    qkv = b.view(b.module(hidden, "attn.Wqkv"), ("B", "S", 3, count, size))
    q, k, v = (b.view(t, ("B", count, "S", size), swaps=True) for t in b.split(qkv, [("B", "S", count, size)] * 3))
    q, k = modernbert_rotation(b, q, k, size)
    output = merged(b, q, k, v, padding_mask(b), Scores(dropout=b.fraction("attention_dropout")))
    return b.dropout(b.module(output, "attn.Wo"), b.fraction("attention_dropout"))


def modernbert_rotation(b: Builder, q: Tensor, k: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Queries and keys are upcast twice each, for themselves and for their rotated halves. The first block, which sees
    everything, has cosines of another base than the windowed ones behind it."""
    cos, sin = b.tables(size, "" if b.weight("attn_norm.weight") is not None else "global ")

    def turn(x: Tensor) -> Tensor:
        return b.add(b.multiply(b.cast(x, "fp32"), cos), b.multiply(b.rotate_half(b.cast(x, "fp32")), sin))

    q_embed = turn(q)
    k_embed = turn(k)
    return b.cast(q_embed, q.dtype), b.cast(k_embed, k.dtype)


def modernbert_mlp(b: Builder, x: Tensor) -> Tensor:
    made = b.module(x, "mlp.Wi")
    width = int(made.shape[-1]) // 2
    value, gate = b.split(made, [("B", "S", width)] * 2)
    product = b.multiply(b.activation(b.text("hidden_activation", default="gelu"), value), gate, "act x gate")
    return b.module(b.dropout(product, b.fraction("mlp_dropout")), "mlp.Wo")
