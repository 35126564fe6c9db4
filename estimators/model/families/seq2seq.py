"""The blocks of BART, mBART, Pegasus and Whisper: k, v, q, out projections; cross-attention in the decoder."""

from __future__ import annotations

from estimators.model.families.common import Config, linear, norm
from estimators.model.families.decoder import Parameters
from estimators.model.spec import Part


def attention(name: str, hidden: int, key_bias: bool) -> Parameters:
    return (
        *linear(f"{name}.k_proj", hidden, hidden, key_bias),
        *linear(f"{name}.v_proj", hidden, hidden, bias=True),
        *linear(f"{name}.q_proj", hidden, hidden, bias=True),
        *linear(f"{name}.out_proj", hidden, hidden, bias=True),
        *norm(f"{name}_layer_norm", hidden, bias=True),
    )


def blocks(config: Config, side: str, class_name: str, key_bias: bool = True, role: str = "") -> Part:
    """One stack; ``side`` is encoder or decoder and stands in the config's keys; its role, unless ``role`` says."""
    config.divided("d_model", f"{side}_attention_heads")
    hidden, inner = config.integer("d_model"), config.integer(f"{side}_ffn_dim")
    cross = attention("encoder_attn", hidden, key_bias) if side == "decoder" else ()
    parameters = (
        *attention("self_attn", hidden, key_bias),
        *cross,
        *linear("fc1", inner, hidden, bias=True),
        *linear("fc2", hidden, inner, bias=True),
        *norm("final_layer_norm", hidden, bias=True),
    )
    return Part(parameters, config.integer(f"{side}_layers"), f"model.{side}.layers.{{}}", class_name=class_name,
                role=role or side)  # fmt: skip
