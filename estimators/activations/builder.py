"""The modules that blocks are made of, as transformers writes them, on a tape.

A ``Builder`` knows one part's parameters by name, so that a linear layer with an adapter, a frozen weight or a 4-bit base
does what that layer does, and a block's own file only says in which order its modules run. Local variables of a block's
file live as long as those of the real ``forward``: delete where it deletes, reuse a name where it does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from estimators.activations.operations import Operations
from estimators.activations.tape import Dim, Tensor, Weight
from estimators.model.spec import Parameter
from estimators.workload import DTYPE_BYTES


@dataclass(frozen=True, slots=True)
class Kernels:
    """Which implementation runs where a stack may choose."""

    attention: str = "sdpa"  # eager, sdpa, flash
    fused: bool = False  # Liger's norm, rotary, SwiGLU
    padding: str = "none"


class Builder(Operations):
    """Modules over one part. ``dtype`` is that of gathered or stored weights as the forward sees them."""

    def __init__(
        self,
        parameters: Mapping[str, Parameter],
        config: Mapping[str, object],
        dtype: str,
        autocast: str | None,
        kernels: Kernels,
        grad: bool = True,
    ) -> None:
        from estimators.activations.tape import Tape

        super().__init__(Tape(grad), autocast)
        self.parameters, self.config, self.dtype, self.kernels = parameters, config, dtype, kernels

    def weight(self, name: str) -> Weight | None:
        """The parameter of that name as an operation sees it; None when the module has none."""
        parameter = self.parameters.get(name)
        if parameter is None:
            return None
        dtype = parameter.dtype if parameter.dtype in DTYPE_BYTES else self.dtype
        return Weight(name, parameter.shape, dtype or self.dtype, parameter.trainable)

    # -- linear ---------------------------------------------------------------------------------------------------
    def module(self, x: Tensor, name: str) -> Tensor:
        """``nn.Linear`` of that name, with whatever the training method made of it."""
        weight = self.weight(f"{name}.weight")
        assert weight is not None, name
        return self.linear(x, weight, name, self.weight(f"{name}.bias"))

    # -- norms ----------------------------------------------------------------------------------------------------
    def rms_norm(self, x: Tensor, name: str) -> Tensor:
        """LlamaRMSNorm: fp32 inside; keeps the upcast input, the rows' rsqrt and the normalised rows."""
        weight = self.weight(f"{name}.weight")
        assert weight is not None, name
        dtype = x.dtype
        x = self.cast(x, "fp32")
        variance = self.row_statistic(self.scale(x, f"{name} upcast", keep_input=True), f"{name} variance")
        shifted = self.scale(variance, f"{name} variance + eps")
        x = self.multiply_rows(x, self.pointwise(f"{name} rsqrt", shifted, keep="output"), f"{name} normalised")
        return self.times_weight(weight, self.cast(x, dtype), f"{name} normalised")

    # -- rotary embeddings ----------------------------------------------------------------------------------------
    def rotary(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """apply_rotary_pos_emb: keeps the cosines and sines only."""
        rotated_q = self.add(self.times_constant(q, cos, "q cos"), self.times_constant(self.rotate_half(q), sin, "q sin"))
        rotated_k = self.add(self.times_constant(k, cos, "k cos"), self.times_constant(self.rotate_half(k), sin, "k sin"))
        return rotated_q, rotated_k

    def rotate_half(self, x: Tensor) -> Tensor:
        half: tuple[Dim, ...] = (*x.shape[:-1], int(x.shape[-1]) // 2)
        return self.cat([self.scale(self.view(x, half), "negated half"), self.view(x, half)], x.shape)
