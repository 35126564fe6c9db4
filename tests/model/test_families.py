"""Each dense family against its transformers class on the meta device: small sizes, each switch that adds tensors."""

from __future__ import annotations

import json
from typing import Any

import pytest

from estimators.model.families import build

transformers = pytest.importorskip("transformers")

from tests.model.meta import compare_with_transformers  # noqa: E402  (needs torch)

# Sizes that no two meanings share, so that a swapped pair shows.
SIZES: dict[str, Any] = {
    "vocab_size": 131, "hidden_size": 48, "intermediate_size": 76, "num_hidden_layers": 3, "num_attention_heads": 6,
}  # fmt: skip
GQA = {**SIZES, "num_key_value_heads": 2}
WIDE = {**GQA, "head_dim": 10}
GPT = {"vocab_size": 131, "n_embd": 48, "n_layer": 3, "n_head": 6, "n_positions": 37}
NEO = {"vocab_size": 131, "hidden_size": 48, "num_layers": 3, "num_heads": 6, "max_position_embeddings": 37,
       "attention_types": [[["global", "local", "global"], 1]]}  # fmt: skip
OPT = {"vocab_size": 131, "hidden_size": 48, "ffn_dim": 76, "num_hidden_layers": 3, "num_attention_heads": 6,
       "max_position_embeddings": 37}  # fmt: skip
BLOOM = {"vocab_size": 131, "hidden_size": 48, "n_layer": 3, "n_head": 6}
FALCON = {"vocab_size": 131, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 6}
MPT = {"vocab_size": 131, "d_model": 48, "n_layers": 3, "n_heads": 6}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192, "rope_theta": 500000.0}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
LONGROPE = {"type": "longrope", "short_factor": [1.0] * 3, "long_factor": [2.0] * 3}

CASES: list[tuple[str, dict[str, Any]]] = [
    ("llama", SIZES),
    ("llama", {**GQA, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    ("llama", {**WIDE, "rope_scaling": LLAMA3, "num_hidden_layers": 1}),
    ("exaone", {k: v for k, v in GQA.items() if k != "num_hidden_layers"} | {"num_layers": 2}),
    ("exaone", {**GQA, "tie_word_embeddings": True}),
    ("internlm3", WIDE),
    ("internlm3", {**WIDE, "qkv_bias": True, "bias": True}),
    ("iquestcoder", WIDE),
    ("mistral", GQA),
    ("mistral", {**WIDE, "tie_word_embeddings": True}),
    ("mistral", {**WIDE, "hidden_size": 50}),
    ("ministral", WIDE),
    ("ministral", {**WIDE, "tie_word_embeddings": True}),
    ("qwen2", GQA),
    ("qwen2", {**GQA, "tie_word_embeddings": True, "rope_scaling": YARN}),
    ("qwen2", {**GQA, "use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}),
    ("qwen3", {**WIDE, "tie_word_embeddings": True}),
    ("qwen3", {**WIDE, "attention_bias": True, "hidden_size": 50}),
    ("gemma", WIDE),
    ("gemma", {**WIDE, "num_key_value_heads": 1, "attention_bias": True, "tie_word_embeddings": False}),
    ("gemma2", WIDE),
    ("gemma2", {**WIDE, "attention_bias": True, "tie_word_embeddings": False}),
    ("gemma3_text", WIDE),
    ("gemma3_text", {**WIDE, "num_hidden_layers": 7, "attention_bias": True, "tie_word_embeddings": False}),
    ("gemma3_text", {**WIDE, "sliding_window_pattern": 2}),
    ("gemma3_text", {**WIDE, "layer_types": ["full_attention"] * 3}),
    ("phi", GQA),
    ("phi", {**SIZES, "qk_layernorm": True, "tie_word_embeddings": True, "partial_rotary_factor": 0.4}),
    ("phi3", GQA | {"pad_token_id": 0}),
    ("phi3", {**SIZES, "pad_token_id": 0, "tie_word_embeddings": True, "partial_rotary_factor": 0.75,
              "rope_scaling": LONGROPE}),
    ("gpt2", GPT),
    ("gpt2", {**GPT, "n_inner": 76, "tie_word_embeddings": False}),
    ("gpt2", {"vocab_size": 131, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}),
    ("gpt_bigcode", GPT),
    ("gpt_bigcode", {**GPT, "multi_query": False, "n_inner": 76, "tie_word_embeddings": False}),
    ("gptj", {**GPT, "rotary_dim": 4}),
    ("gptj", {**GPT, "rotary_dim": 6, "n_inner": 76, "tie_word_embeddings": True}),
    ("codegen", {**GPT, "n_head": 12, "rotary_dim": 4}),
    ("codegen", {**GPT, "n_head": 4, "rotary_dim": 4, "n_inner": 76, "tie_word_embeddings": True}),
    ("gpt_neo", NEO),
    ("gpt_neo", {**NEO, "intermediate_size": 76, "tie_word_embeddings": False}),
    ("gpt_neox", SIZES),
    ("gpt_neox", {**SIZES, "rotary_pct": 0.6, "attention_bias": False, "tie_word_embeddings": True}),
    ("gpt_neox", {**SIZES, "rotary_pct": 1.0, "use_parallel_residual": False}),
    ("opt", OPT),
    ("opt", {**OPT, "word_embed_proj_dim": 20, "do_layer_norm_before": False}),
    ("opt", {**OPT, "word_embed_proj_dim": 20, "enable_bias": False, "tie_word_embeddings": False}),
    ("opt", {**OPT, "layer_norm_elementwise_affine": False}),
    ("opt", {**OPT, "_remove_final_layer_norm": True}),
    ("bloom", BLOOM),
    ("bloom", {"vocab_size": 131, "n_embed": 48, "num_hidden_layers": 2, "num_attention_heads": 3,
               "tie_word_embeddings": False}),
    ("falcon", FALCON),
    ("falcon", {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2}),
    ("falcon", {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 3, "num_ln_in_parallel_attn": 1,
                "ffn_hidden_size": 76, "tie_word_embeddings": False}),
    ("falcon", {**FALCON, "multi_query": False, "parallel_attn": False, "bias": True, "alibi": True}),
    ("falcon", {**FALCON, "multi_query": True, "num_ln_in_parallel_attn": 2}),
    ("mpt", MPT),
    ("mpt", {**MPT, "expansion_ratio": 3, "tie_word_embeddings": False}),
    ("starcoder2", GQA),
    ("starcoder2", {**GQA, "use_bias": False, "tie_word_embeddings": False}),
    ("granite", GQA),
    ("granite", {**GQA, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    ("smollm3", GQA | {"pad_token_id": 0}),
    ("smollm3", {**GQA, "pad_token_id": 0, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False}),
    ("helium", {**GQA, "head_dim": 8}),
    ("helium", {**GQA, "head_dim": 8, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    ("ernie4_5", WIDE),
    ("ernie4_5", {**GQA, "head_dim": None, "use_bias": True, "tie_word_embeddings": False}),
    ("seed_oss", WIDE),
    ("seed_oss", {**WIDE, "attention_bias": False, "attention_out_bias": True, "mlp_bias": True,
                  "tie_word_embeddings": True}),
    ("ministral3", WIDE),
    ("ministral3", {**WIDE, "tie_word_embeddings": True}),
    ("jais2", WIDE),
    ("jais2", {**GQA, "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": True}),
    ("apertus", GQA),
    ("apertus", {**GQA, "attention_bias": True, "hidden_act": "silu", "tie_word_embeddings": True}),
    ("arcee", SIZES),
    ("arcee", {**GQA, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    ("olmo", SIZES),
    ("olmo", {**GQA, "attention_bias": True, "tie_word_embeddings": True}),
    ("olmo2", GQA),
    ("olmo2", {**SIZES, "attention_bias": True, "tie_word_embeddings": True}),
    ("olmo3", GQA),
    ("olmo3", {**SIZES, "num_hidden_layers": 5, "attention_bias": True, "tie_word_embeddings": True}),
    ("glm", {**WIDE, "pad_token_id": 0}),
    ("glm", {**WIDE, "pad_token_id": 0, "attention_bias": False, "tie_word_embeddings": True,
             "partial_rotary_factor": 0.7}),
    ("glm4", {**WIDE, "pad_token_id": 0}),
    ("glm4", {**WIDE, "pad_token_id": 0, "attention_bias": False, "tie_word_embeddings": True}),
    ("stablelm", GQA),
    ("stablelm", {**GQA, "use_qkv_bias": True, "qk_layernorm": True, "use_parallel_residual": True,
                  "tie_word_embeddings": True, "partial_rotary_factor": 0.5}),
    ("cohere", GQA),
    ("cohere", {**SIZES, "use_qk_norm": True, "attention_bias": True, "tie_word_embeddings": False}),
    ("cohere2", GQA),
    ("cohere2", {**WIDE, "attention_bias": True, "tie_word_embeddings": False}),
    ("nemotron", GQA),
    ("nemotron", {**WIDE, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    ("hunyuan_v1_dense", WIDE),
    ("hunyuan_v1_dense", {**WIDE, "attention_bias": True, "tie_word_embeddings": True}),
    ("exaone4", GQA),
    ("exaone4", {**GQA, "tie_word_embeddings": True, "num_hidden_layers": 5}),
]  # fmt: skip


@pytest.mark.parametrize(("family", "sizes"), CASES, ids=[f"{i}-{family}" for i, (family, _) in enumerate(CASES)])
def test_equals_the_real_class(family: str, sizes: dict[str, Any]) -> None:
    config = {"model_type": family, **sizes}
    spec = build(config)
    assert spec.family == family
    assert spec.shapes == "checked"
    compare_with_transformers(spec, config)


@pytest.mark.parametrize(("family", "sizes"), CASES, ids=[f"{i}-{family}" for i, (family, _) in enumerate(CASES)])
def test_a_saved_config_says_the_same(family: str, sizes: dict[str, Any]) -> None:
    """What ``save_pretrained`` writes spells out every key, nulls included, in today's spelling."""
    saved = json.loads(transformers.CONFIG_MAPPING[family](**sizes).to_json_string(use_diff=False))
    ours, again = build({"model_type": family, **sizes}), build(saved)
    assert list(again.named_parameters()) == list(ours.named_parameters())
    assert again.tied == ours.tied
    assert [part.buffers for part in again.parts] == [part.buffers for part in ours.parts]
