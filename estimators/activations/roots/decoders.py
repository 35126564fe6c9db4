"""Embeddings of decoders that do more than look words up: positions, dropout, a norm, a projection."""

from __future__ import annotations

from estimators.activations.builder import Builder
from estimators.activations.roots import Joint, Roots
from estimators.activations.roots.pieces import lookup, over_ids
from estimators.activations.tape import Tensor
from estimators.model.spec import ModelSpec

DROPS = {"gpt2": "embd_pdrop", "gpt_bigcode": "embd_pdrop", "gpt_neo": "embed_dropout", "gptj": "embd_pdrop",
         "codegen": "embd_pdrop"}  # fmt: skip


def positions(model: ModelSpec) -> Roots:
    """GPT-2, GPT-BigCode, GPT-Neo: words and learned positions, dropout."""

    def run(b: Builder, ids: Tensor) -> Tensor:
        words = lookup(b, model.embedding, ids)
        places = b.tape.new("places", (1, "S"), "int64")
        table = f"{model.embedding.rpartition('.')[0]}.wpe"
        here = lookup(b, table, places, (1, "S"))
        b.frame += [words, here]
        hidden = b.add(words, here)
        del words, here, places
        return b.dropout(hidden, b.fraction(DROPS[model.family]), "embedding dropout")

    return Roots((Joint(0, over_ids(run), from_data=True),))


def dropped(model: ModelSpec) -> Roots:
    """GPT-J, CodeGen: dropout of the words."""

    def run(b: Builder, ids: Tensor) -> Tensor:
        return b.dropout(lookup(b, model.embedding, ids), b.fraction(DROPS[model.family]), "embedding dropout")

    return Roots((Joint(0, over_ids(run), from_data=True),))


def normed(model: ModelSpec) -> Roots:
    """BLOOM: a norm behind the words."""

    def run(b: Builder, ids: Tensor) -> Tensor:
        return b.norm(lookup(b, model.embedding, ids), f"{model.embedding}_layernorm")

    return Roots((Joint(0, over_ids(run), from_data=True),))


def opt(model: ModelSpec) -> Roots:
    """OPT: words, projected where they are narrower than the stream, and learned positions."""
    stem = model.embedding.rpartition(".")[0]

    def run(b: Builder, ids: Tensor) -> Tensor:
        words = lookup(b, model.embedding, ids)
        places = b.tape.new("places", ("B", "S"), "int64")
        here = lookup(b, f"{stem}.embed_positions", places)
        if b.weight(f"{stem}.project_in.weight") is not None:
            words = b.module(words, f"{stem}.project_in")
        return b.add(words, here)

    return Roots((Joint(0, over_ids(run), from_data=True),))
