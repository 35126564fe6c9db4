"""BERT and relatives: three tables, a norm and dropout in front; a masked-language head behind."""

from __future__ import annotations

from estimators.activations.builder import Builder
from estimators.activations.losses import Loss, finished
from estimators.activations.roots import Joint, Roots
from estimators.activations.roots.pieces import cross_entropy, lookup, named, nothing, over_ids
from estimators.activations.tape import Tensor
from estimators.model.spec import ModelSpec


def bert(model: ModelSpec) -> Roots:
    """BertEmbeddings: token types are gathered from a buffer; positions are a buffer."""
    return _roots(model, ("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm"))


def roberta(model: ModelSpec) -> Roots:
    """RobertaEmbeddings: positions are counted from the ids of every sample."""
    return _roots(model, ("lm_head.dense", "lm_head.layer_norm"), by_sample=True)


def electra(model: ModelSpec) -> Roots:
    """ElectraEmbeddings, narrower than the blocks, and a projection; the generator's head."""
    return _roots(model, ("generator_predictions.dense", "generator_predictions.LayerNorm"), act="gelu")


def _roots(model: ModelSpec, head: tuple[str, str], by_sample: bool = False, act: str = "") -> Roots:
    stem = model.embedding.rpartition(".")[0]

    def run(b: Builder, ids: Tensor) -> Tensor:
        rows = "B" if by_sample else 1
        places = b.tape.new("places", (rows, "S"), "int64") if by_sample else nothing(b, (1, "S"))
        types = b.tape.new("token types", (rows, "S"), "int64")
        words = lookup(b, model.embedding, ids)
        kinds = lookup(b, f"{stem}.token_type_embeddings", types)
        hidden = b.add(words, kinds)
        here = lookup(b, f"{stem}.position_embeddings", places, (rows, "S"))
        hidden = b.add(hidden, here)
        hidden = b.norm(hidden, f"{stem}.LayerNorm")
        hidden = b.dropout(hidden, b.fraction("hidden_dropout_prob", default=0.1))
        if any(name.startswith(f"{stem}_project.") for name in b.parameters):
            hidden = b.module(hidden, f"{stem}_project")
        return named(b, hidden)

    def masked_lm(b: Builder, hidden: Tensor, loss: Loss) -> Tensor:
        name = act or (b.text("hidden_act", default="gelu") if not by_sample else "gelu")
        return masked_head(b, hidden, head, name, model.head, loss)

    return Roots((Joint(0, over_ids(run), "encoder", from_data=True),), masked_lm)


def distilbert(model: ModelSpec) -> Roots:
    """DistilBERT: no token types."""
    stem = model.embedding.rpartition(".")[0]

    def run(b: Builder, ids: Tensor) -> Tensor:
        words = lookup(b, model.embedding, ids)
        here = lookup(b, f"{stem}.position_embeddings", nothing(b, (1, "S")), (1, "S"))
        hidden = b.add(words, here)
        hidden = b.norm(hidden, f"{stem}.LayerNorm")
        return named(b, b.dropout(hidden, b.fraction("dropout", default=0.1)))

    def masked_lm(b: Builder, hidden: Tensor, loss: Loss) -> Tensor:
        act = b.text("activation", default="gelu")
        return masked_head(b, hidden, ("vocab_transform", "vocab_layer_norm"), act, model.head, loss)

    return Roots((Joint(0, over_ids(run), "encoder", from_data=True),), masked_lm)


def modernbert(model: ModelSpec) -> Roots:
    """ModernBertEmbeddings: words, a norm, dropout; a last norm before a head whose loss is taken in fp32."""
    stem = model.embedding.rpartition(".")[0]

    def run(b: Builder, ids: Tensor) -> Tensor:
        hidden = b.norm(lookup(b, model.embedding, ids), f"{stem}.norm")
        return b.dropout(hidden, b.fraction("embedding_dropout"))

    def masked_lm(b: Builder, hidden: Tensor, loss: Loss) -> Tensor:
        hidden = b.norm(hidden, "model.final_norm")
        act = b.text("classifier_activation", default="gelu")
        logits = [b.top(b.norm(b.activation(act, b.module(hidden, "head.dense")), "head.norm"), model.head)]
        return finished(b, logits, cross_entropy(b, b.cast(logits[0], "fp32")), loss)

    return Roots((Joint(0, over_ids(run), "encoder", from_data=True),), masked_lm)


def masked_head(b: Builder, hidden: Tensor, names: tuple[str, str], act: str, head: str, loss: Loss) -> Tensor:
    """dense, activation, norm, vocabulary; the loss is taken of every token, in the dtype of the logits."""
    dense, norm = names
    made = b.module(hidden, dense)
    made = b.activation(act, made)
    made = b.norm(made, norm)
    logits = [b.top(made, head)]
    del made
    return finished(b, logits, cross_entropy(b, logits[0]), loss)
