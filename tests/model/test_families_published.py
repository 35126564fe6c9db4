"""Totals that others published, at real sizes: hub code that transformers lacks, and a few famous networks."""

from __future__ import annotations

from typing import Any

import pytest

from estimators.errors import NotModelled
from estimators.model.families import build

BAICHUAN_7B = {"model_type": "baichuan", "vocab_size": 64000, "hidden_size": 4096, "intermediate_size": 11008,
               "num_hidden_layers": 32, "num_attention_heads": 32, "max_position_embeddings": 4096}  # fmt: skip
BAICHUAN_13B = {"model_type": "baichuan", "vocab_size": 64000, "hidden_size": 5120, "intermediate_size": 13696,
                "num_hidden_layers": 40, "num_attention_heads": 40, "model_max_length": 4096}  # fmt: skip
CHATGLM2 = {"model_type": "chatglm", "padded_vocab_size": 65024, "hidden_size": 4096, "ffn_hidden_size": 13696,
            "num_layers": 28, "num_attention_heads": 32, "kv_channels": 128, "multi_query_attention": True,
            "multi_query_group_num": 2, "add_qkv_bias": True, "architectures": ["ChatGLMModel"]}  # fmt: skip
INTERNLM2_7B = {"model_type": "internlm2", "vocab_size": 92544, "hidden_size": 4096, "intermediate_size": 14336,
                "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
                "bias": False}  # fmt: skip
MINICPM_2B = {"model_type": "minicpm", "vocab_size": 122753, "hidden_size": 2304, "intermediate_size": 5760,
              "num_hidden_layers": 40, "num_attention_heads": 36, "num_key_value_heads": 36}  # fmt: skip
QWEN_7B = {"model_type": "qwen", "architectures": ["QWenLMHeadModel"]}  # the published config equals the defaults
LLAMA3_8B = {"model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
             "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8}  # fmt: skip
LLAMA2_7B = {"model_type": "llama"}

PUBLISHED: list[tuple[str, dict[str, Any], int]] = [
    # README of github.com/baichuan-inc/Baichuan-13B, table of model details
    ("Baichuan-7B", BAICHUAN_7B, 7_000_559_616),
    ("Baichuan-13B", BAICHUAN_13B, 13_264_901_120),
    # torchinfo summary of THUDM/chatglm2-6b
    ("chatglm2-6b", CHATGLM2, 6_243_584_000),
    # safetensors header of internlm2-7b and 2.5-7b
    ("internlm2-7b", INTERNLM2_7B, 7_737_708_544),
    # n_parameters of the MTEB registry for models on MiniCPM-2B
    ("MiniCPM-2B", MINICPM_2B, 2_724_880_896),
    # GGUF metadata of Qwen-7B-Chat
    ("Qwen-7B", QWEN_7B, 7_721_324_544),
    # safetensors headers on the hub
    ("Llama-3-8B", LLAMA3_8B, 8_030_261_248),
    ("Llama-2-7B", LLAMA2_7B, 6_738_415_616),
]


@pytest.mark.parametrize(("config", "total"), [row[1:] for row in PUBLISHED], ids=[row[0] for row in PUBLISHED])
def test_total_is_the_published_one(config: dict[str, Any], total: int) -> None:
    assert build(config).num_params == total


@pytest.mark.parametrize("family", ["baichuan", "chatglm", "internlm", "internlm2", "minicpm", "qwen"])
def test_hub_code_says_that_it_is_a_formula(family: str) -> None:
    spec = build({"model_type": family})
    assert spec.shapes == "formula"
    names = [name for name, _ in spec.named_parameters()]
    assert len(names) == len(set(names))
    assert f"{spec.embedding}.weight" in names
    assert f"{spec.head}.weight" in (*names, *spec.tied)


def test_baichuan_2_has_a_head_that_is_not_linear() -> None:
    first, second = build(BAICHUAN_13B), build({**BAICHUAN_13B, "z_loss_weight": 0})
    assert dict(first.named_parameters())["lm_head.weight"].kind == "linear"
    assert dict(second.named_parameters())["lm_head.weight"].kind == "other"
    assert {part.class_name for part in second.blocks} == {"BaichuanLayer"}
    assert {part.class_name for part in build(BAICHUAN_7B).blocks} == {"DecoderLayer"}


def test_other_networks_under_the_same_model_type_are_refused() -> None:
    with pytest.raises(NotModelled, match="inner_hidden_size"):
        build({"model_type": "chatglm", "inner_hidden_size": 16384})
    with pytest.raises(NotModelled, match="num_experts"):
        build({"model_type": "minicpm", "num_experts": 8})
