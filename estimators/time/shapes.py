"""What one token costs a network, read from its shapes once per model.

Everything here is per token and independent of how the run is split; a model of 80 layers is a handful of numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from estimators.model.spec import ModelSpec, Parameter, Part
from estimators.values import dataclass, replace

PRODUCTS = ("linear", "conv1d", "experts", "other")  # kinds whose tensors multiply the activations
ACTIVE_KEYS = ("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_topk", "moe_k", "top_k")
ADAPTER_ENDS = 0.5  # an adapter reads its layer's input once more, and adds to its output: half of a layer's own moves
ROLE_HEADS = {"audio": ("encoder_attention_heads",)}
NOT_TOKENS = ("vision", "audio", "projector")  # parts that see images or sound


@dataclass(frozen=True, slots=True)
class TokenWork:
    """Sums over a network, per token that passes through it.

    ``products`` counts elements of weights that multiply (x 2 = forward FLOPs), of which ``input_grad`` hand a gradient
    to their input and ``weight_grad`` train. ``blocks`` is the share of ``products`` inside checkpointable blocks,
    ``moved`` the elements that enter or leave a product there. ``pairs`` are the attention layers: (layers, heads,
    width of query plus value, window or 0, causal).
    """

    products: float
    input_grad: float
    weight_grad: float
    blocks: float
    expert_products: float
    head: float  # width of logits x input, forward elements of the output head
    vocabulary: int
    moved: float
    calls: int  # products, for launches
    layers: int
    pairs: tuple[tuple[int, int, int, int, bool], ...]
    quantised: int  # stored in a packed format and expanded at every use


def number(config: Mapping[str, object], *keys: str) -> int:
    """The first of some keys that holds a positive whole number; 0 when none does."""
    for key in keys:
        value = config.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
        if isinstance(value, list) and value and isinstance(value[0], int):
            return value[0]
    return 0


def active_share(part: Part, config: Mapping[str, object]) -> float:
    """Experts that a token passes through, as a share of all: 8 of 256 = 1/32; 1 for a dense block."""
    experts = next((p.shape[0] for p in part.parameters if p.kind == "experts" and len(p.shape) == 3), 0)
    active = number(config, *ACTIVE_KEYS)
    return min(1.0, active / experts) if experts and active else 1.0


def weight_of(parameter: Parameter, share: float) -> float:
    """Elements that multiply one token: all of a matrix, the active share of experts, none of a vector or a table."""
    if parameter.kind not in PRODUCTS or len(parameter.shape) < 2:
        return 0.0
    return parameter.numel * (share if parameter.kind == "experts" or ".experts." in parameter.name else 1.0)


def ends_of(parameter: Parameter, share: float) -> float:
    """Elements of input and output of a product, per token: in + out, each active expert's apart."""
    if parameter.kind not in PRODUCTS or len(parameter.shape) < 2:
        return 0.0
    ends = parameter.shape[-1] + parameter.shape[-2]
    if len(parameter.shape) == 3:
        return ends * parameter.shape[0] * share
    return float(ends)


def text_config(config: Mapping[str, object]) -> Mapping[str, object]:
    """The part of a configuration that describes the decoder of a model with several towers."""
    inner = config.get("text_config") or config.get("llm_config")
    return inner if isinstance(inner, Mapping) else config


@lru_cache(maxsize=1024)
def token_work(model: ModelSpec) -> TokenWork:
    """The sums of a network's text, or of all of it where it has none. Towers beside the text: :func:`tower_work`.

    Llama-2-7B: ``products`` 6_607_077_376 = 32 x 202_375_168 + 32000 x 4096.
    """
    head, trains = _head(model), 1.0 if _head_trains(model) else 0.0
    parts = [(part, flows) for part, flows in _flowing(model) if part not in towers(model)]
    found = _work(parts, text_config(model.config))
    return replace(
        found, products=found.products + head[0], input_grad=found.input_grad + head[0],
        weight_grad=found.weight_grad + trains * head[0], head=head[0], vocabulary=head[1], layers=model.num_layers,
    )  # fmt: skip


@lru_cache(maxsize=1024)
def tower_work(model: ModelSpec, tower: Part) -> TokenWork:
    """The sums of a vision or audio tower, per patch or frame that passes through it."""
    parts = [(part, flows) for part, flows in _flowing(model) if part is tower]
    return _work(parts, tower_config(model, tower))


@lru_cache(maxsize=1024)
def towers(model: ModelSpec) -> tuple[Part, ...]:
    """Blocks that see images or sound beside a text; none where they are the whole model."""
    if all(part.role in NOT_TOKENS for part in model.blocks):
        return ()
    return tuple(part for part in model.blocks if part.role in NOT_TOKENS)


def tower_config(model: ModelSpec, tower: Part) -> Mapping[str, object]:
    """The part of a configuration that describes a tower."""
    inner = model.config.get(f"{tower.role}_config")
    return inner if isinstance(inner, Mapping) else model.config


def _flowing(model: ModelSpec) -> Iterator[tuple[Part, bool]]:
    """Blocks, and whether a gradient passes through them: something in them or before them trains."""
    flows = False
    for part in model.parts:
        flows = flows or any(p.trainable for p in part.parameters)
        if part.is_block:
            yield part, flows


def _work(parts: Sequence[tuple[Part, bool]], config: Mapping[str, object]) -> TokenWork:
    """The sums over some blocks."""
    sums = dict.fromkeys(("products", "input_grad", "weight_grad", "expert", "moved"), 0.0)
    quantised, calls, layers = 0, 0, 0
    pairs: list[tuple[int, int, int, int, bool]] = []
    for part, flows in parts:
        share = active_share(part, config)
        for p in part.parameters:
            weight = part.count * weight_of(p, share)
            sums["products"] += weight
            sums["input_grad"] += weight if flows else 0.0
            sums["weight_grad"] += weight if p.trainable else 0.0
            sums["expert"] += weight if p.kind == "experts" else 0.0
            sums["moved"] += part.count * ends_of(p, share) * (ADAPTER_ENDS if "lora_" in p.name else 1.0)
            quantised += part.count * p.numel if p.stored_bytes is not None else 0
            calls += part.count if weight else 0
        layers += part.count
        pairs += attention_pairs(part, config)
    return TokenWork(
        sums["products"], sums["input_grad"], sums["weight_grad"], sums["products"], sums["expert"], 0.0, 0,
        sums["moved"], calls, layers, tuple(pairs), quantised,
    )  # fmt: skip


def _head_name(model: ModelSpec) -> tuple[str, str]:
    name = f"{model.head}.weight" if model.head else ""
    return name, model.tied.get(name, name)


def _head(model: ModelSpec) -> tuple[float, int]:
    """Elements of the output head (a tied one too: it multiplies again) and the width of its logits."""
    name, stored = _head_name(model)
    for part in model.roots:
        for p in part.parameters:
            if name and p.name in (name, stored, f"{model.head}.base_layer.weight"):
                return float(p.numel), p.shape[0]
    return 0.0, 0


def _head_trains(model: ModelSpec) -> bool:
    stored = _head_name(model)[1]
    return any(p.trainable for part in model.roots for p in part.parameters if p.name == stored)


def attention_pairs(part: Part, config: Mapping[str, object]) -> list[tuple[int, int, int, int, bool]]:
    """Attention layers of a run of blocks: (layers, heads, query width + value width of a head, window, causal)."""
    heads = number(
        config,
        "num_attention_heads",
        "n_head",
        "n_heads",
        "num_heads",
        *ROLE_HEADS.get(part.role, ()),
        "decoder_attention_heads",
    )
    hidden = number(config, *(("embed_dim",) if part.role in NOT_TOKENS else ()), "hidden_size", "d_model", "n_embd")
    if not heads or not hidden:
        return []
    width = number(config, "head_dim", "d_kv") or hidden // heads
    latent = number(config, "qk_nope_head_dim") + number(config, "qk_rope_head_dim")
    both = latent + number(config, "v_head_dim") if latent else 2 * width
    causal = part.role == "decoder"
    window = number(config, "sliding_window") if config.get("use_sliding_window", True) else 0
    kinds = config.get("layer_types")
    sliding = part.count if window else 0
    if isinstance(kinds, list) and kinds:
        here = kinds[part.first : part.first + part.count]
        sliding = sum(kind in ("sliding_attention", "local") for kind in here) if window else 0
        linear = sum(kind == "linear_attention" for kind in here)
        whole = len(here) - sliding - linear
    else:
        whole = part.count - sliding
    rows = [(whole, heads, both, 0, causal), (sliding, heads, both, window, causal)]
    if any("EncDecAttention" in p.name or "encoder_attn" in p.name for p in part.parameters):
        rows.append((part.count, heads, both, 0, False))
    return [row for row in rows if row[0]]
