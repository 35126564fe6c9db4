"""CodeGen: GPT-J with q, k, v in one tensor, after the output projection."""

from __future__ import annotations

from estimators.model.families.common import Config, linear
from estimators.model.families.gpt2 import COMMON_NAMES
from estimators.model.families.gptj import parallel_frame
from estimators.model.spec import ModelSpec

# transformers CodeGenConfig
DEFAULTS = {
    "vocab_size": 50400, "tie_word_embeddings": False, "n_positions": 2048, "n_embd": 4096, "n_layer": 28,
    "n_head": 16, "rotary_dim": 64,
}  # fmt: skip


def build(config: Config) -> ModelSpec:
    config = config.renamed(COMMON_NAMES)
    hidden = config.integer("hidden_size")
    projections = (*linear("attn.out_proj", hidden, hidden), *linear("attn.qkv_proj", 3 * hidden, hidden))
    return parallel_frame(config, "CodeGenForCausalLM", "CodeGenBlock", projections)
