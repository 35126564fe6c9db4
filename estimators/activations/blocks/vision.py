"""Pre-norm blocks over image patches: transformers/models/{vit,deit,dinov2,clip,siglip,idefics3,internvl,pixtral}.

A tower's sizes depend on its images, not on the text: ``image_size / patch_size`` squared patches for each image, each
image a row of the batch. A profile of a tower is therefore evaluated for micro-batch x images of a sample. CLIP's and
SigLIP's text towers are the same blocks over tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from estimators.activations.attention import Scores
from estimators.activations.blocks.two_way import Names, attention, head_size, heads, merged, padding_mask
from estimators.activations.builder import Builder
from estimators.activations.streams import Over
from estimators.activations.tape import Dim, Tensor
from estimators.errors import NotModelled

VIT = Names("attention.q_proj", "attention.k_proj", "attention.v_proj", "attention.o_proj")
INTERNVL = Names("attention.q_proj", "attention.k_proj", "attention.v_proj", "attention.projection_layer")


def pair(value: object) -> tuple[int, int]:
    """A size given once or as [height, width]."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return int(value[0]), int(value[1])
    assert isinstance(value, int), value
    return value, value


def grid(b: Builder) -> int:
    """Patches of an image. Raises ``NotModelled`` where the config leaves its size open."""
    if b.config.get("image_size") is None:
        raise NotModelled("its vision config states no image_size, which decides how many patches an image has")
    (height, width), (down, across) = pair(b.config["image_size"]), pair(b.config["patch_size"])
    return (height // down) * (width // across)


def over_patches(special: int = 0) -> Callable[[Builder], tuple[Dim, ...]]:
    """Patches and ``special`` tokens (class, distillation) of an image; tokens if the config has no patches."""

    def shape(b: Builder) -> tuple[Dim, ...]:
        return ("B", grid(b) + special if "patch_size" in b.config else "S", b.width)

    return shape


def feed_forward(b: Builder, x: Tensor, act: str = "", name: str = "mlp") -> Tensor:
    """fc1, activation, fc2; each result takes the place of the one before."""
    x = b.module(x, f"{name}.fc1")
    x = b.activation(act or b.text("hidden_act", default="gelu"), x)
    return b.module(x, f"{name}.fc2")


def _vit(b: Builder, hidden: Tensor) -> Tensor:
    """ViTLayer: dropout of both branches."""
    drop = b.fraction("hidden_dropout_prob")
    residual = hidden
    hidden = b.norm(hidden, "layernorm_before")
    hidden = attention(b, hidden, VIT, head_size(b), b.fraction("attention_probs_dropout_prob"), upcast=True)
    hidden = b.dropout(hidden, drop)
    hidden = b.add(hidden, residual)

    residual = hidden
    hidden = b.norm(hidden, "layernorm_after")
    hidden = feed_forward(b, hidden)
    hidden = b.dropout(hidden, drop)
    return b.add(hidden, residual)


def _dinov2(b: Builder, hidden: Tensor) -> Tensor:
    """Dinov2Layer: each branch has a learned scale; stochastic depth is off by default."""
    residual = hidden
    hidden = b.norm(hidden, "norm1")
    hidden = attention(b, hidden, VIT, head_size(b), b.fraction("attention_probs_dropout_prob"))
    hidden = b.multiply(hidden, b.need("layer_scale1.lambda1"), "layer scale")
    hidden = b.add(hidden, residual)

    residual = hidden
    hidden = b.norm(hidden, "norm2")
    hidden = feed_forward(b, hidden) if any(n.startswith("mlp.fc1.") for n in b.parameters) else gated(b, hidden)
    hidden = b.multiply(hidden, b.need("layer_scale2.lambda1"), "layer scale")
    return b.add(hidden, residual)


def gated(b: Builder, x: Tensor, name: str = "mlp", act: str = "silu") -> Tensor:
    """down(act(gate(x)) * up(x))."""
    gates = b.activation(act, b.module(x, f"{name}.gate_proj"))
    return b.module(b.multiply(gates, b.module(x, f"{name}.up_proj"), "act x up"), f"{name}.down_proj")


def _clip(b: Builder, hidden: Tensor) -> Tensor:
    return _named(b, hidden, "quick_gelu")


def _siglip(b: Builder, hidden: Tensor) -> Tensor:
    return _named(b, hidden, "gelu_pytorch_tanh")


def _named(b: Builder, hidden: Tensor, act: str) -> Tensor:
    """CLIPEncoderLayer, SiglipEncoderLayer: the same, with another activation function by default."""
    act = b.text("hidden_act", default=act)
    residual = hidden
    hidden = b.norm(hidden, "layer_norm1")
    mask = text_mask(b)
    hidden = attention(b, hidden, Names(), head_size(b), b.fraction("attention_dropout"), mask=mask, upcast=True)
    hidden = b.add(residual, hidden)

    residual = hidden
    hidden = b.norm(hidden, "layer_norm2")
    hidden = feed_forward(b, hidden, act)
    return b.add(residual, hidden)


def text_mask(b: Builder) -> Tensor | None:
    """CLIP's text tower is causal, SigLIP's sees both ways; patches have no mask."""
    if "patch_size" in b.config:
        return None
    return b.mask() if "clip" in b.text("model_type") and "siglip" not in b.text("model_type") else padding_mask(b)


def _internvl(b: Builder, hidden: Tensor) -> Tensor:
    """InternVLVisionLayer: norms of whole projections where configured, a learned scale of both branches."""
    attended = _internvl_attention(b, _norm(b, hidden, "layernorm_before"))
    attended = b.multiply(b.need("lambda_1"), attended, "layer scale")
    hidden = b.add(attended, hidden)
    output = _norm(b, hidden, "layernorm_after")
    output = b.dropout(feed_forward(b, output), b.fraction("hidden_dropout_prob"))
    output = b.multiply(b.need("lambda_2"), output, "layer scale")
    return b.add(output, hidden)


def _norm(b: Builder, x: Tensor, name: str) -> Tensor:
    return b.norm(x, name) if b.weight(f"{name}.bias") else b.rms_norm(x, name)


def _internvl_attention(b: Builder, hidden: Tensor) -> Tensor:
    size = head_size(b)
    q, k, v = (b.module(hidden, f"attention.{n}_proj") for n in "qkv")
    if b.flag("use_qk_norm"):
        q = b.rms_norm(q, "attention.q_norm")
        k = b.rms_norm(k, "attention.k_norm")
    q, k, v = (heads(b, t, size) for t in (q, k, v))
    output = merged(b, q, k, v, None, Scores(upcast=False, dropout=b.fraction("attention_dropout")))
    return b.dropout(b.module(output, "attention.projection_layer"), b.fraction("projection_dropout"))


vit, deit = Over(over_patches(1), _vit), Over(over_patches(2), _vit)
dinov2 = Over(over_patches(1), _dinov2)
clip_or_text = Over(over_patches(1), _clip)
siglip = Over(over_patches(), _siglip)
internvl = Over(over_patches(1), _internvl)
