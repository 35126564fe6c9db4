"""What follows the last block: final norm, head and loss, as the same kind of profile as a block."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from estimators.activations.builder import Builder
from estimators.activations.losses import Loss, causal_loss, finished, fused_linear, fused_rows
from estimators.activations.profile import Conditions, Profile, config_of, run_piece
from estimators.activations.roots import Joint, roots_of
from estimators.activations.streams import Over
from estimators.activations.tape import Tensor
from estimators.devices import DEVICES
from estimators.model.spec import ModelSpec, Parameter
from estimators.values import replace

# Families whose final norm is neither LlamaRMSNorm nor nn.LayerNorm with a bias.
GEMMA = ("gemma", "gemma2", "gemma3_text", "gemma3", "paligemma")
CAST_LAST = ("olmo2", "olmo3")
BY_HAND = ("cohere", "cohere2")
WITHOUT_BIAS = ("mpt",)
# Names that end the path of a final norm, inside the root.
FINAL_NORMS = ("norm", "ln_f", "final_layernorm", "final_layer_norm", "norm_f", "f")


def head(
    model: ModelSpec, conditions: Conditions | None = None, loss: Loss | None = None, holds_input: bool = False
) -> Profile:
    """Final norm, output embeddings and loss. Its output is the loss; ``held`` what the loop keeps until the end.

    ``holds_input``: whoever calls has a name for what comes in. A model has none: ``hidden = self.norm(hidden)``.
    """
    return _head(model, conditions or Conditions(), loss or Loss(), holds_input)


@lru_cache(maxsize=4096)
def _head(model: ModelSpec, conditions: Conditions, loss: Loss, holds_input: bool) -> Profile:
    parameters = root_parameters(model)
    config = config_of(model, model.blocks[-1].role)
    roots = roots_of(model)

    def builder(grad: bool) -> Builder:
        return Builder(parameters, config, conditions.precision, conditions.kernels, grad, DEVICES[conditions.device])

    def piece(b: Builder, x: Tensor) -> Tensor:
        box = [x]  # no frame but the head's has a name for its input
        del x
        return roots.head(b, box.pop(), loss) if roots.head else head_and_loss(b, box.pop(), model, loss)

    whole = Over(roots.over, piece) if roots.over else piece
    return run_piece(builder, whole, conditions.needs_input_gradient, holds_input=holds_input)


def joint(model: ModelSpec, which: Joint, conditions: Conditions) -> Profile:
    """A piece of the root between its blocks, or in front of them."""
    return _joint(model, which, conditions)


@lru_cache(maxsize=4096)
def _joint(model: ModelSpec, which: Joint, conditions: Conditions) -> Profile:
    parameters, config = root_parameters(model), config_of(model, which.role, conditions.image_patches)

    def builder(grad: bool) -> Builder:
        made = Builder(parameters, config, conditions.precision, conditions.kernels, grad, DEVICES[conditions.device])
        made.words = model.embedding if conditions.needs_input_gradient and not model.words_first else ""
        return made

    flows = conditions.needs_input_gradient and not which.from_data
    return run_piece(builder, which.piece, flows, holds_input=False, from_data=which.from_data)


def with_rows(model: ModelSpec, loss: Loss, tokens: int) -> Loss:
    """A fused loss for a number of tokens: its pieces have a whole number of rows."""
    if loss.kind != "fused" or roots_of(model).head:
        return loss
    weight = root_parameters(model)[f"{model.head}.weight"]
    return replace(loss, rows=fused_rows(tokens, *weight.shape[:2]))


def root_parameters(model: ModelSpec) -> dict[str, Parameter]:
    """Parameters outside the blocks by name; a tied name stands for what it shares."""
    found = {p.name: p for part in model.roots for p in part.parameters}
    for alias, name in model.tied.items():
        if name in found:
            found[alias] = found[name]
    return found


def head_and_loss(b: Builder, hidden: Tensor, model: ModelSpec, loss: Loss) -> Tensor:
    """``LlamaForCausalLM.forward`` after its blocks, and what becomes of its outputs."""
    hidden = final_norm(b, hidden, model)
    if loss.kind == "fused":
        return fused_linear(b, hidden, model.head, loss)
    product = b.top(hidden, model.head)
    logits = scaled_logits(b, product, model)
    del product
    if loss.upcasts == "model":
        logits = b.cast(logits, "fp32")
    result = causal_loss(b, logits, loss)
    outputs = [logits]
    del logits
    return finished(b, outputs, result, loss)


def final_norm(b: Builder, hidden: Tensor, model: ModelSpec) -> Tensor:
    family = model.family
    if family == "olmo":
        return b.cast(b.layer_norm(b.cast(hidden, "fp32"), None, None, "final norm"), hidden.dtype)
    name = final_norm_name(b.parameters)
    if name is None:
        return hidden
    if family in GEMMA:
        return b.gemma_norm(hidden, name)
    if family in CAST_LAST:
        return b.rms_norm_cast_last(hidden, name)
    if family == "helium":
        return b.rms_norm_in_fp32(hidden, name)
    if family in BY_HAND:
        return b.cohere_norm(hidden, name)
    if family == "nemotron":
        return b.norm_1p(hidden, name)
    if b.weight(f"{name}.bias") is not None or family in WITHOUT_BIAS:
        return b.norm(hidden, name)
    return b.rms_norm(hidden, name)


def final_norm_name(parameters: Mapping[str, Parameter]) -> str | None:
    """The last norm of the root."""
    names = [p.name.rpartition(".")[0] for p in parameters.values() if p.kind == "norm"]
    return next((n for n in reversed(names) if n.rpartition(".")[2] in FINAL_NORMS), None)


def scaled_logits(b: Builder, logits: Tensor, model: ModelSpec) -> Tensor:
    """Logits multiplied by a number (cohere, granite) or soft-capped (gemma2), each step a tensor."""
    if model.family in ("cohere", "cohere2", "granite"):
        logits = b.scale(logits, "scaled logits")
    if b.fraction("final_logit_softcapping"):
        logits = b.scale(logits, "logits / cap")
        logits = b.pointwise("tanh", logits, "output")
        logits = b.scale(logits, "capped logits")
    return logits
