"""Learned positions end: the real model fails one token beyond what is said, and not before."""

from __future__ import annotations

from typing import Any

import pytest

from estimators import estimate, parse_cluster, resolve_model
from estimators.model.positions import learned_positions
from selector.fit import fit

GPT2 = {"model_type": "gpt2", "n_embd": 32, "n_layer": 1, "n_head": 2, "vocab_size": 64, "n_positions": 16}
OPT = {"model_type": "opt", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "ffn_dim": 64,
       "vocab_size": 64, "max_position_embeddings": 16, "word_embed_proj_dim": 32}  # fmt: skip


@pytest.mark.parametrize("config", [GPT2, OPT], ids=["gpt2", "opt"])
def test_the_real_model_fails_one_token_later(config: dict[str, Any]) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    longest = learned_positions(resolve_model(config))
    assert longest == 16
    made = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**config))
    made(torch.zeros(1, longest, dtype=torch.long))
    with pytest.raises(IndexError):
        made(torch.zeros(1, longest + 1, dtype=torch.long))


def test_it_is_said_and_fit_stays_below() -> None:
    notes = estimate("gpt2", "1xA10", "single", seq_len=2048).notes
    assert any("1,024 learned positions" in note for note in notes)
    assert not any("learned positions" in note for note in estimate("llama-8b", "1xA10", "single").notes)
    assert fit(resolve_model("gpt2"), parse_cluster("1xA10"), ["single"])[0][0].seq_len == 1024


def test_tables_of_patches_and_audio_are_not_meant() -> None:
    assert learned_positions(resolve_model("vit-base-patch16-224")) is None
    assert learned_positions(resolve_model("whisper-small")) == 448
