"""Learned positions end: the real model fails one token beyond what is said, and not before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from estimators import InputError, estimate, parse_cluster, resolve_model
from estimators.model.positions import learned_positions
from selector import recommend
from selector.fit import fit

GPT2 = {"model_type": "gpt2", "n_embd": 32, "n_layer": 1, "n_head": 2, "vocab_size": 64, "n_positions": 16}
OPT = {"model_type": "opt", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "ffn_dim": 64,
       "vocab_size": 64, "max_position_embeddings": 16, "word_embed_proj_dim": 32}  # fmt: skip

ROBERTA = {"model_type": "roberta", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
           "intermediate_size": 64, "vocab_size": 64, "max_position_embeddings": 18}  # fmt: skip
GPTJ, CODEGEN = ({**GPT2, "model_type": name, "rotary_dim": 4} for name in ("gptj", "codegen"))


@pytest.mark.parametrize("config", [GPT2, OPT, ROBERTA, GPTJ, CODEGEN], ids=lambda config: config["model_type"])
def test_the_real_model_fails_one_token_later(config: dict[str, Any]) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    longest = learned_positions(resolve_model(config))
    assert longest == 16
    made = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**config))
    made(torch.full((1, longest), 5))
    with pytest.raises((IndexError, RuntimeError)):
        made(torch.full((1, longest + 1), 5))


def test_it_is_said_and_fit_stays_below() -> None:
    notes = estimate("gpt2", "1xA10", "single", seq_len=2048).notes
    assert any("1,024 positions" in note for note in notes)
    assert not any("positions" in note for note in estimate("llama-8b", "1xA10", "single").notes)
    assert fit(resolve_model("gpt2"), parse_cluster("1xA10"), ["single"])[0][0].seq_len == 1024


def test_tables_of_patches_and_audio_are_not_meant() -> None:
    assert learned_positions(resolve_model("vit-base-patch16-224")) is None
    assert learned_positions(resolve_model("whisper-small")) == 448


def test_a_default_that_is_too_long_gives_way_and_a_value_that_was_given_does_not(tmp_path: Path) -> None:
    """The script for GPT-2 at the plain default of 2,048 tokens ended in an IndexError at its first step."""
    answer = recommend("gpt2", "3xA10")
    assert answer.estimate is not None and answer.estimate.run.workload.seq_len == 1024
    assert any("1,024 positions" in reason for reason in answer.reasons)
    assert estimate("gpt2", "3xA10", "ddp").run.workload.seq_len == 1024
    assert estimate("llama-8b", "3xA10", "ddp").run.workload.seq_len == 2048
    too_long = recommend("gpt2", "3xA10", max_seq_length=2048)
    assert too_long.question.seq_len == 2048
    with pytest.raises(InputError, match="give --seq-len 1024"):
        too_long.emit(tmp_path / "run")
    assert not (tmp_path / "run").exists()
