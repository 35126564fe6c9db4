"""What a transformers 5.24 config assumes for absent keys that change how a block runs, not what it is made of.

Only what differs from silu, no dropout, and off; checked against the classes by a test.
"""

from __future__ import annotations

from collections.abc import Mapping

BEHAVIOUR: dict[str, dict[str, object]] = {
    "apertus": {"hidden_act": "xielu"},
    "arcee": {"hidden_act": "relu2"},
    "codegen": {"activation_function": "gelu_new", "rotary_dim": 64},
    "ernie4_5": {"head_dim": 128},
    "falcon": {"multi_query": True, "parallel_attn": True},
    "gemma": {"hidden_act": "gelu_pytorch_tanh", "head_dim": 256},
    "gemma2": {
        "hidden_activation": "gelu_pytorch_tanh", "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
        "head_dim": 256,
    },
    "gemma3_text": {"hidden_activation": "gelu_pytorch_tanh", "head_dim": 256},
    "glm": {"partial_rotary_factor": 0.5, "head_dim": 128},
    "glm4": {"partial_rotary_factor": 0.5, "head_dim": 128},
    "gpt2": {"activation_function": "gelu_new", "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1},
    "gpt_bigcode": {
        "activation_function": "gelu_pytorch_tanh", "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1,
        "multi_query": True,
    },
    "gpt_neo": {"activation_function": "gelu_new"},
    "gpt_neox": {"hidden_act": "gelu", "rotary_pct": 0.25, "use_parallel_residual": True},
    "gptj": {"activation_function": "gelu_new", "rotary_dim": 64},
    "helium": {"head_dim": 128},
    "jais2": {"hidden_act": "relu2"},
    "ministral3": {"head_dim": 128},
    "nemotron": {"hidden_act": "relu2", "partial_rotary_factor": 0.5},
    "opt": {"activation_function": "relu", "dropout": 0.1, "do_layer_norm_before": True},
    "phi": {"hidden_act": "gelu_new", "partial_rotary_factor": 0.5},
    "qwen3": {"head_dim": 128},
    "seed_oss": {"attention_dropout": 0.1, "residual_dropout": 0.1, "head_dim": 128},
    "stablelm": {"partial_rotary_factor": 0.25},
    "starcoder2": {"hidden_act": "gelu_pytorch_tanh"},
}  # fmt: skip


def with_defaults(config: Mapping[str, object]) -> Mapping[str, object]:
    """``config`` over what its class assumes."""
    assumed = BEHAVIOUR.get(str(config.get("model_type")))
    return {**assumed, **config} if assumed else config
