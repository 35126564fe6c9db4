"""T5, BART and Whisper: embeddings of both sides, the end of the encoder, and a head whose labels are not shifted."""

from __future__ import annotations

from estimators.activations.blocks.t5 import t5_norm
from estimators.activations.builder import Builder
from estimators.activations.losses import Loss, finished
from estimators.activations.roots import Joint, Roots, first_of
from estimators.activations.roots.pieces import convolution, cross_entropy, lookup, over_ids
from estimators.activations.streams import Over
from estimators.activations.tape import Dim, Tensor
from estimators.model.spec import ModelSpec


def t5(model: ModelSpec) -> Roots:
    """Words and dropout in front of both stacks; a norm and dropout behind them."""
    decoder = first_of(model, "decoder")

    def embed(b: Builder, ids: Tensor) -> Tensor:
        words = lookup(b, model.embedding, ids)
        b.frame.append(words)  # ``inputs_embeds``
        return b.dropout(words, b.fraction("dropout_rate", default=0.1))

    def shifted(b: Builder, _: Tensor) -> Tensor:
        ids = b.tape.new("labels, shifted right", ("B", "S"), "int64")
        return embed(b, ids)

    def behind(side: str) -> object:
        def run(b: Builder, hidden: Tensor) -> Tensor:
            return b.dropout(t5_norm(b, hidden, f"{side}.final_layer_norm"), b.fraction("dropout_rate", default=0.1))

        return run

    def head(b: Builder, hidden: Tensor, loss: Loss) -> Tensor:
        hidden = states = behind("decoder")(b, hidden)  # type: ignore[operator]
        if b.flag("scale_decoder_outputs", b.flag("tie_word_embeddings", True) and model.family == "t5"):
            hidden = b.scale(hidden, "scaled states")
        logits = [b.top(hidden, model.head)]
        result = finished(b, logits, cross_entropy(b, logits[0]), loss)
        del states  # ``decoder_outputs`` had them until here
        return result

    return Roots((
        Joint(0, over_ids(embed), "encoder", from_data=True),
        Joint(decoder, behind("encoder"), "encoder"),  # type: ignore[arg-type]
        Joint(decoder, over_ids(shifted), from_data=True, restarts=True),
    ), head)  # fmt: skip


def bart(model: ModelSpec) -> Roots:
    """BART, mBART, Pegasus: words times a number, positions, a norm and dropout in front; logits plus a buffer."""
    decoder = first_of(model, "decoder")

    def embed(b: Builder, ids: Tensor, side: str) -> Tensor:
        words = b.scale(lookup(b, model.embedding, ids), "scaled words")
        here = fixed_positions(b) if model.family == "pegasus" else learned_positions(b, side)
        b.frame += [words, here]
        hidden = b.add(words, here)
        del words, here
        name = f"model.{side}.layernorm_embedding"
        if b.weight(f"{name}.weight") is not None:
            hidden = b.norm(hidden, name)
        return b.dropout(hidden, b.fraction("dropout", default=0.1))

    def learned_positions(b: Builder, side: str) -> Tensor:
        shape: tuple[Dim, ...] = ("B" if side == "encoder" else 1, "S")
        return lookup(b, f"model.{side}.embed_positions", b.tape.new("places", shape, "int64"), shape)

    def fixed_positions(b: Builder) -> Tensor:
        return b.tape.new("sines and cosines of places", ("S", b.width), b.stream)

    def shifted(b: Builder, _: Tensor) -> Tensor:
        return embed(b, b.tape.new("labels, shifted right", ("B", "S"), "int64"), "decoder")

    def last(b: Builder, hidden: Tensor, side: str) -> Tensor:
        name = f"model.{side}.layer_norm"
        return b.norm(hidden, name) if b.weight(f"{name}.weight") is not None else hidden

    def head(b: Builder, hidden: Tensor, loss: Loss) -> Tensor:
        logits = b.top(last(b, hidden, "decoder"), model.head)
        outputs = [b.shift(logits, "logits and bias")]
        del logits
        return finished(b, outputs, cross_entropy(b, outputs[0]), loss)

    def heard(b: Builder, hidden: Tensor) -> Tensor:
        return last(b, hidden, "encoder")

    normed = (Joint(decoder, heard, "encoder"),) if model.family != "bart" else ()
    return Roots((
        Joint(0, over_ids(lambda b, ids: embed(b, ids, "encoder")), "encoder", from_data=True),
        *normed,
        Joint(decoder, over_ids(shifted), from_data=True, restarts=True),
    ), head)  # fmt: skip


def whisper(model: ModelSpec) -> Roots:
    """Two convolutions over the spectrogram with GELU, positions that do not train; learned positions of tokens."""
    decoder, side = first_of(model, "decoder"), "model.encoder"
    bins, frames = int(str(model.config["num_mel_bins"])), 2 * int(str(model.config["max_source_positions"]))

    def hear(b: Builder, mel: Tensor) -> Tensor:
        made = b.activation("gelu", convolution(b, mel, f"{side}.conv1", ("B", frames, b.width)))
        made = b.activation("gelu", convolution(b, made, f"{side}.conv2", ("B", frames // 2, b.width)))
        places = b.tape.new("places of frames", (frames // 2,), "int64")
        hidden = b.add(made, lookup(b, f"{side}.embed_positions", places, (frames // 2,)))
        del made, places
        return b.dropout(hidden, b.fraction("dropout"))

    def heard(b: Builder, hidden: Tensor) -> Tensor:
        return b.norm(hidden, f"{side}.layer_norm")

    def read(b: Builder, _: Tensor) -> Tensor:
        ids = b.tape.new("labels, shifted right", ("B", "S"), "int64")
        words = lookup(b, model.embedding, ids)
        del ids
        places = b.tape.new("places", ("B", "S"), "int64")
        hidden = b.add(words, lookup(b, "model.decoder.embed_positions", places))
        return b.dropout(hidden, b.fraction("dropout"))

    def head(b: Builder, hidden: Tensor, loss: Loss) -> Tensor:
        logits = [b.top(b.norm(hidden, "model.decoder.layer_norm"), model.head)]
        return finished(b, logits, cross_entropy(b, logits[0]), loss)

    return Roots((
        Joint(0, Over(lambda b: ("B", bins, frames), hear), "audio", from_data=True),
        Joint(decoder, Over(lambda b: ("B", frames // 2, b.width), heard), "audio"),
        Joint(decoder, over_ids(read), from_data=True, restarts=True),
    ), head, reals=lambda batch, _images, _patches: batch * bins * frames, integers=lambda batch, seq: batch * seq)  # fmt: skip
