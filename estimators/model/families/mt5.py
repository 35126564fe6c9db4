"""mT5: T5 v1.1 with a vocabulary for a hundred languages."""

from __future__ import annotations

from estimators.model.families.common import Config
from estimators.model.families.t5 import assemble
from estimators.model.spec import ModelSpec

# transformers MT5Config
DEFAULTS = {
    "vocab_size": 250112, "d_model": 512, "d_kv": 64, "d_ff": 1024, "num_layers": 8, "num_heads": 6,
    "relative_attention_num_buckets": 32, "feed_forward_proj": "gated-gelu",
}  # fmt: skip


def build(config: Config) -> ModelSpec:
    return assemble(config, "MT5")
