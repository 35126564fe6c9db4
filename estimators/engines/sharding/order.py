"""The order in which a block's modules run, from the names of its parameters: gradients come in the reverse."""

from __future__ import annotations

from estimators.model.spec import Part

# Where a module runs inside its block, by the first part of its name: the order in which gradients arrive (reversed),
# and in which stage 3 fetches. What is not named keeps the place that it has among the parameters.
_RUNS_AT = {
    "input_layernorm": 0.0, "pre_attention_layernorm": 0.0, "operator_norm": 0.0, "ln_1": 0.0,
    "norm1": 0.0, "layer_norm1": 0.0, "layernorm_before": 0.0,
    "self_attn": 1.0, "linear_attn": 1.0, "attn": 1.0, "self_attention": 1.0, "attention": 1.0, "conv": 1.0,
    "layer_scale1": 1.5, "norm2": 2.0, "layer_norm2": 2.0, "layernorm_after": 2.0,
    "post_attention_layernorm": 2.0, "ln_2": 2.0, "pre_feedforward_layernorm": 2.5, "ffn_norm": 2.5,
    "post_feedforward_layernorm": 4.0,
}  # fmt: skip
_IN_SUBLAYER = {"layer_norm": 0.0, "o": 0.02}  # of T5's ``layer.0``, ``layer.1``...; the rest in between


def execution_order(part: Part) -> list[int]:
    """Indices of a part's parameters in the order in which their modules run.

    Norms stand last among a block's parameters and run first; HF decoder blocks register attention, MLP, norms.
    """

    def when(index: int) -> tuple[float, int]:
        first, *rest = part.parameters[index].name.split(".")
        if first == "layer" and rest[0].isdigit():
            return int(rest[0]) + min((_IN_SUBLAYER[x] for x in rest if x in _IN_SUBLAYER), default=0.01), index
        return _RUNS_AT.get(first, 3.0), index

    return sorted(range(len(part.parameters)), key=when) if part.is_block else list(range(len(part.parameters)))


def used_order(part: Part) -> list[int]:
    """``execution_order`` as gradients see it, last to first: adapters on stacked experts were all read before the first
    product, the outer wrapper's first, B before A (``activations/wrapped.py``)."""
    order = execution_order(part)
    factors = [i for i in order if ".experts." in part.parameters[i].name and ".lora_" in part.parameters[i].name]
    swapped = dict(zip(factors, reversed(factors), strict=True))
    return [swapped.get(i, i) for i in order]
