"""BART, mBART and Pegasus: learned or fixed positions held as parameters, one shared table, a bias on the logits."""

from __future__ import annotations

from estimators.model.families import seq2seq
from estimators.model.families.common import Config, embedding, linear, norm
from estimators.model.families.decoder import Parameters
from estimators.model.families.pieces import present, root
from estimators.model.spec import Buffer, ModelSpec, Part

# transformers BartConfig, MBartConfig, PegasusConfig
DEFAULTS = {
    "vocab_size": 50265, "max_position_embeddings": 1024, "encoder_layers": 12, "encoder_ffn_dim": 4096,
    "encoder_attention_heads": 16, "decoder_layers": 12, "decoder_ffn_dim": 4096, "decoder_attention_heads": 16,
    "d_model": 1024, "tie_word_embeddings": True,
}  # fmt: skip
STEMS = {"bart": "Bart", "mbart": "MBart", "pegasus": "Pegasus"}
OFFSET = 2  # BART and mBART keep two positions before the first


def stack(config: Config, family: str, side: str, table: Parameters) -> tuple[Part, ...]:
    """Embedding when untied, positions, blocks, norms. BART has no final norm, Pegasus none after the embedding."""
    hidden, places = config.integer("d_model"), config.integer("max_position_embeddings")
    prefix = f"model.{side}"
    positions = embedding(f"{prefix}.embed_positions", places + (0 if family == "pegasus" else OFFSET), hidden)
    after_embedding = () if family == "pegasus" else norm(f"{prefix}.layernorm_embedding", hidden, bias=True)
    final = () if family == "bart" else norm(f"{prefix}.layer_norm", hidden, bias=True)
    return present(
        root(table, positions, role=side),
        seq2seq.blocks(config, side, f"{STEMS[family]}{side.capitalize()}Layer"),
        root(after_embedding, final, role=side),
    )


def build(config: Config) -> ModelSpec:
    family, tie = config.text("model_type"), config.flag("tie_word_embeddings")
    rows, hidden = config.integer("vocab_size"), config.integer("d_model")
    own = {
        side: () if tie else embedding(f"model.{side}.embed_tokens", rows, hidden) for side in ("encoder", "decoder")
    }
    names = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight")
    head = () if tie else linear("lm_head", rows, hidden)
    return ModelSpec(
        name="",
        family=family,
        class_name=f"{STEMS[family]}ForConditionalGeneration",
        parts=(
            root(embedding("model.shared", rows, hidden), role="encoder"),
            *stack(config, family, "encoder", own["encoder"]),
            *stack(config, family, "decoder", own["decoder"]),
            root(head, buffers=(Buffer("final_logits_bias", (1, rows), persistent=True),)),
        ),
        config=config.values,
        tied=dict.fromkeys(names, "model.shared.weight") if tie else {},
        embedding="model.shared",
        head="lm_head",
    )
