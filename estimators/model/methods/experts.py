"""Adapters on experts that transformers 5 fused into 3-D parameters, as peft 0.21 makes them.

peft translates the names of the projections that used to be modules (``w1``, ``gate_proj`` ...) into parameters for
the families of two checkpoint layouts (peft/utils/transformers_weight_conversion.py); for every other family
``all-linear`` leaves fused experts and routers alone. A wrapped parameter of E experts gets A [r E, in], B [out, r E];
where gate and up were fused the rank doubles.
"""

from __future__ import annotations

from collections.abc import Mapping

from estimators.model.methods.matching import full_name
from estimators.model.spec import ModelSpec, Parameter
from estimators.values import replace

# layout -> old module name -> parameter (peft _MOE_TARGET_MODULE_MAPPING)
EXPERT_TARGETS: Mapping[str, Mapping[str, str]] = {
    "mixtral": {"gate": "gate.weight", "w1": "gate_up_proj", "w3": "gate_up_proj", "w2": "down_proj"},
    "qwen2_moe": {
        "gate": "gate.weight", "gate_proj": "gate_up_proj", "up_proj": "gate_up_proj", "down_proj": "down_proj",
    },
}  # fmt: skip

# model_type -> layout (transformers _MODEL_TO_CONVERSION_PATTERN, and peft's entry for mixtral)
LAYOUTS: Mapping[str, str] = {
    "mixtral": "mixtral", "minimax": "mixtral", "minimax_m2": "mixtral",
    **dict.fromkeys((
        "afmoe", "deepseek_v2", "deepseek_v3", "deepseek_v32", "dots1", "ernie4_5_moe", "glm4_moe", "glm4_moe_lite",
        "glm_moe_dsa", "glm4v_moe", "longcat_flash", "solar_open", "mellum", "qwen3_moe", "beam", "qwen3_omni_moe",
        "qwen3_omni_moe_thinker", "qwen3_omni_moe_text", "qwen3_next", "hunyuan_v1_moe", "flex_olmo", "olmoe",
        "sarvam_mla", "exaone_moe", "cohere2_moe",
    ), "qwen2_moe"),
}  # fmt: skip

DOUBLED = "gate_up_proj"  # two projections in one: rank and alpha double


def fused_targets(model: ModelSpec) -> str:
    """The layout by whose names peft finds this network's experts; empty where it does not look."""
    return LAYOUTS.get(str(model.config.get("model_type")), "")


def wrapped_experts(
    module: str, parameters: list[Parameter], targets: tuple[str, ...], rank: int, dtype: str
) -> tuple[Parameter, ...]:
    """A module some of whose parameters are adapted: one wrapper around another, the first parameter innermost."""
    adapted = [p for p in parameters if any(f".{p.name}".endswith(f".{t}") for t in targets)]
    base = "base_layer." * len(adapted)
    out = [replace(p, name=full_name(module, base + p.name.rpartition(".")[2])) for p in parameters]
    for index, p in enumerate(adapted):
        wrapper = "base_layer." * (len(adapted) - 1 - index)
        experts, rows, columns = (1, *p.shape)[-3:]
        r = rank * experts * (2 if p.name.endswith(DOUBLED) else 1)
        for name, shape in (("lora_A", (r, columns)), ("lora_B", (rows, r))):
            out.append(Parameter(full_name(module, f"{wrapper}{name}.default.weight"), shape, "linear", dtype=dtype))
    return tuple(out)
