# mypy: ignore-errors
"""Head and loss in one kernel, chunk by chunk: the logits are never held whole (liger-kernel)."""

from liger_kernel.transformers import _apply_liger_kernel_to_instance


def fuse_loss(model):
    """Only the loss is replaced; norms, rotary embedding and MLP stay the model's own."""
    others = dict.fromkeys(("rope", "rms_norm", "swiglu", "cross_entropy"), False)
    _apply_liger_kernel_to_instance(model=model, fused_linear_cross_entropy=True, **others)
