"""The modules that blocks are made of, as transformers writes them, on a tape.

A ``Builder`` knows one part's parameters by name, so that a linear layer with an adapter, a frozen weight or a 4-bit
base does what that layer does, and a block's own file only says in which order its modules run. Local variables of a
block's file live as long as those of the real ``forward``: delete where it deletes, reuse a name where it does.
"""

from __future__ import annotations

from collections.abc import Mapping

from estimators.activations.adapted import adapted, quantised
from estimators.activations.attention import Kernels
from estimators.activations.functions import Functions
from estimators.activations.tape import Dim, Size, Tape, Tensor, Weight
from estimators.devices import DEVICES, Device
from estimators.errors import NotModelled
from estimators.model.spec import Parameter
from estimators.values import dataclass


@dataclass(frozen=True, slots=True)
class Precision:
    """dtypes that a forward sees.

    ``weights``: of weights that carry none of their own. ``uniform``: the engine casts every weight to it on gathering
    (FSDP's mixed precision), whatever they are stored in. ``autocast``: torch.autocast's dtype (A.3). ``stream``: of the
    residual stream, where it is not that of the weights (the embedding's: fp32 under autocast). ``adapters``: of an
    adapter's weights when peft reads it, where they are gathered and cast only after that (FSDP1's units inside a block).
    """

    weights: str = "bf16"
    autocast: str | None = None
    stream: str = ""
    uniform: bool = False
    adapters: str = ""


class Builder(Functions):
    """Modules over one part."""

    def __init__(
        self,
        parameters: Mapping[str, Parameter],
        config: Mapping[str, object],
        precision: Precision,
        kernels: Kernels,
        grad: bool = True,
        device: Device = DEVICES["cuda"],
    ) -> None:
        super().__init__(Tape(grad), precision.autocast, device)
        self.parameters, self.config, self.kernels, self.precision = parameters, config, kernels, precision
        self.dtype = precision.weights
        self.stream = precision.stream or precision.weights
        self.shared: dict[str, tuple[Tensor, Size]] = {}
        self.true_sizes: dict[str, Size] = {}  # of what is shared, counted or not
        self.frame: list[Tensor] = []  # what the model's own frame holds until its forward returns
        self.outputs: list[Tensor] = []  # what the model's outputs hold until the loss is there
        self.carried: dict[str, Size] = {}  # what is shared with a gradient, which is summed over the blocks
        self.words = ""  # the table whose output is made to ask for a gradient (``enable_input_require_grads``)
        self.leaves: list[Tensor] = []  # leaves that a gradient flows to: the graph holds both until backward is over
        self.arguments: list[Tensor] = []  # copies that the engine makes of shared tensors for this block alone
        self.held: list[Tensor] = []  # outputs that the training loop holds until backward is over
        self.at_head: Size | None = None  # bytes alive when the head is called
        self.at_logits: Size | None = None  # when it has made the logits, before the loss
        self.kept_until_return: list[Tensor] = []  # what the layer's frame holds until it returns (``hidden, _ = ...``)

    @property
    def width(self) -> int:
        """Features of the residual stream."""
        return self.number("hidden_size", "n_embd", "d_model", "dim")

    def number(self, *keys: str, default: int | None = None) -> int:
        """The first of these integers that the config has."""
        value = next((self.config[key] for key in keys if self.config.get(key) is not None), default)
        assert isinstance(value, int | float), f"{keys}: {value!r}"
        return int(value)

    def fraction(self, *keys: str, default: float = 0.0) -> float:
        value = next((self.config[key] for key in keys if self.config.get(key) is not None), default)
        return float(value) if isinstance(value, int | float) else default

    def text(self, *keys: str, default: str = "") -> str:
        return str(next((self.config[key] for key in keys if self.config.get(key) is not None), default))

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.config.get(key)
        return default if value is None else bool(value)

    @property
    def head_size(self) -> int:
        """Elements of an attention head."""
        queries = self.number("num_attention_heads", "n_head", "num_heads", "n_heads")
        return self.number("head_dim", default=self.width // queries)

    @property
    def rotary_share(self) -> float:
        """The share of each head that rotary embeddings turn."""
        rope = self.config.get("rope_parameters") or self.config.get("rope_scaling") or {}
        given = rope.get("partial_rotary_factor") if isinstance(rope, Mapping) else None
        return float(given) if given is not None else self.fraction("partial_rotary_factor", "rotary_pct", default=1.0)

    def weight(self, name: str) -> Weight | None:
        """The parameter of that name as an operation sees it; None when the module has none."""
        parameter = self.parameters.get(name)
        if parameter is None:
            return None
        own = parameter.dtype if parameter.stored_bytes is None and not self.precision.uniform else None
        return Weight(name, parameter.shape, own or self.dtype, parameter.trainable)

    def need(self, name: str) -> Weight:
        """A weight that the block cannot do without. Raises ``NotModelled`` for a block built in another way."""
        weight = self.weight(name)
        if weight is None:
            raise NotModelled(f"its blocks have no {name}, which this stack's own network is built of")
        return weight

    # -- what comes from outside the block --------------------------------------------------------------------------
    def given(self, name: str, shape: tuple[Dim, ...], dtype: str | None = None) -> Tensor:
        """A tensor that every block shares (cosines, masks): counted once for the model, not in the block."""
        if name not in self.shared:
            tensor = self.tape.new(name, shape, dtype or self.stream)
            self.shared[name] = (tensor, self.tape.forget(tensor))
            self.true_sizes[name] = self.shared[name][1]
        return self.shared[name][0]

    def given_fp32(self, name: str, shape: tuple[Dim, ...]) -> Tensor:
        """A shared tensor in fp32 that blocks compute with in fp32. FSDP gives each unit a copy in the dtype that it
        computes in (``cast_forward_inputs``), which checkpointing keeps with the unit's input."""
        whole = self.given(name, shape, "fp32")
        if not self.precision.uniform or self.precision.weights == "fp32":
            return whole
        self.arguments.append(self.cast(whole, self.precision.weights))
        return self.cast(self.arguments[-1], "fp32")

    def mask(self) -> Tensor | None:
        """The causal mask of masking_utils.py: numbers for eager; bools for sdpa where a flag is not enough."""
        if self.kernels.attention == "eager":
            return self.given("mask", ("B" if self.kernels.padding == "right" else 1, 1, "S", "S"))
        if self.kernels.attention == "sdpa" and (self.kernels.padding == "right" or self.kernels.windowed):
            return self.given("mask", ("B" if self.kernels.padding == "right" else 1, 1, "S", "S"), "bool")
        return None

    def tables(self, size: int, name: str = "") -> tuple[Tensor, Tensor]:
        """cos and sin of rotary embeddings."""
        return self.given(f"{name}cos", (1, 1, "S", size)), self.given(f"{name}sin", (1, 1, "S", size))

    # -- linear ---------------------------------------------------------------------------------------------------
    def module(self, x: Tensor, name: str) -> Tensor:
        """``nn.Linear`` of that name, with whatever the training method made of it."""
        if f"{name}.lora_A.default.weight" in self.parameters:
            with self.tape.inside(name):
                return adapted(self, x, name)
        if f"{name}.modules_to_save.default.weight" in self.parameters:
            name = f"{name}.modules_to_save.default"
        return self.base(x, name)

    def top(self, x: Tensor, name: str) -> Tensor:
        """``module`` of the head, noting what is alive when it is called and when it has made the logits."""
        self.at_head = self.tape.live
        logits = self.module(x, name)
        self.at_logits = self.tape.live
        return logits

    def base(self, x: Tensor, name: str) -> Tensor:
        """The linear itself, or its quantised stand-in."""
        weight, bias = self.need(f"{name}.weight"), self.weight(f"{name}.bias")
        parameter = self.parameters[weight.name]
        with self.tape.inside(name):
            if parameter.stored_bytes is not None:
                return quantised(self, x, parameter, bias)
            return self.linear(x, weight, name, bias, transposed=parameter.kind == "conv1d")

    def heads(self, x: Tensor, name: str, size: int) -> Tensor:
        """A projection seen as [B, heads, S, size]."""
        flat = self.module(x, name)
        return self.view(flat, ("B", int(flat.shape[-1]) // size, "S", size), swaps=True)
