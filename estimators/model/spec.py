"""A network as a sequence of parts: root parameters and runs of equal blocks.

The order of parts, and of parameters inside a part, is the order of ``module.parameters()``: engines
flatten, bucket and partition in that order, so it decides bytes. Shapes are never derived from a size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from estimators.values import cached_property, dataclass, field

# Owner of a parameter, by what tools that treat modules by type (peft, bitsandbytes, wrapping) look for.
KINDS = ("linear", "conv1d", "embedding", "norm", "conv", "experts", "other")
# A tensor that transformers keeps in fp32: never, when loaded in fp16, or when loaded in any 16-bit dtype.
KEEP_FP32 = ("", "fp16", "16bit")

BUFFER_DTYPE_BYTES = {
    "fp64": 8, "complex64": 8, "int64": 8, "fp32": 4, "int32": 4, "bf16": 2, "fp16": 2, "int16": 2, "int8": 1,
    "uint8": 1, "bool": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Parameter:
    """One tensor of a module.

    ``name`` is relative to its part's prefix (``self_attn.q_proj.weight``). ``kind`` is the type of the module that
    owns it. ``trainable``, ``dtype`` and ``stored_bytes`` are what a training method decided: ``dtype`` None means
    the workload's own; ``stored_bytes`` is set when the tensor is not stored as numel x dtype (4-bit bases), and
    ``side_bytes`` counts what lies beside it (absmax, code books, statistics).
    """

    name: str
    shape: tuple[int, ...]
    kind: str = "linear"
    keep_fp32: str = ""
    trainable: bool = True
    dtype: str | None = None
    stored_bytes: int | None = None
    side_bytes: int = 0

    @property
    def numel(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class Buffer:
    """A registered buffer (rotary frequencies, masks): bytes that every rank holds whole.

    ``is_number``: made of a Python number, in the dtype that the model is built in.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "fp32"
    persistent: bool = False
    is_number: bool = False

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.numel * BUFFER_DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, eq=False, slots=True)
class Part:
    """A run of ``count`` equal pieces: transformer blocks (``is_block``), or root parameters (count 1).

    ``prefix`` carries ``{}`` where the index stands: ``model.layers.{}``; indices run from ``first``.
    ``class_name`` is the class that FSDP wraps and checkpointing repeats; empty for root parameters, whose names are
    whole and whose prefix is empty. ``role`` says what the blocks are: decoder, encoder, vision, audio, projector.
    """

    parameters: tuple[Parameter, ...]
    count: int = 1
    prefix: str = ""
    first: int = 0
    class_name: str = ""
    role: str = "decoder"
    buffers: tuple[Buffer, ...] = ()

    @property
    def is_block(self) -> bool:
        return bool(self.class_name)

    @property
    def numel(self) -> int:
        """Elements of one piece."""
        return sum(p.numel for p in self.parameters)

    def names(self, index: int) -> Iterator[str]:
        """Full parameter names of piece ``index`` (0-based inside this part)."""
        stem = self.prefix.format(self.first + index)
        for p in self.parameters:
            yield f"{stem}.{p.name}" if stem else p.name


@dataclass(frozen=True, eq=False)
class ModelSpec:
    """An architecture, resolved. Compared and hashed by identity: resolving a name twice gives the same object.

    ``tied`` maps a second name to the parameter that it shares storage with; tied names are not in ``parts``.
    ``head`` and ``embedding`` are the module names of output and input embeddings (peft and bitsandbytes spare the
    head). ``shapes`` says how they were established: ``checked`` (family formula, tested against the transformers
    class), ``formula`` (hub code only, checked against published totals), ``meta`` (read from the class), ``module``.
    ``config`` is the Hugging Face style dictionary that the shapes came from.
    """

    name: str
    family: str
    class_name: str
    parts: tuple[Part, ...]
    config: Mapping[str, object]
    tied: Mapping[str, str] = field(default_factory=dict)
    embedding: str = ""
    head: str = ""
    shapes: str = "checked"
    source: str = ""
    nominal_billions: float | None = None

    @cached_property
    def num_params(self) -> int:
        """Elements of all parameters, tied ones once. Llama-3.1-8B: 8_030_261_248."""
        return sum(part.numel * part.count for part in self.parts)

    @cached_property
    def num_trainable(self) -> int:
        return sum(part.count * sum(p.numel for p in part.parameters if p.trainable) for part in self.parts)

    @cached_property
    def blocks(self) -> tuple[Part, ...]:
        return tuple(part for part in self.parts if part.is_block)

    @cached_property
    def roots(self) -> tuple[Part, ...]:
        return tuple(part for part in self.parts if not part.is_block)

    @cached_property
    def executed(self) -> tuple[int, ...]:
        """Numbers of the parts in the order in which they run: a vision-language model looks words up before its tower
        sees an image (``inputs_embeds = self.get_input_embeddings()(input_ids)``), though they stand behind the tower.

        Autograd goes newest first: their gradient comes behind the tower's. Mllama gives ids to its language model.
        """
        words = f"{self.embedding}.weight"
        number = next((at for at, part in enumerate(self.parts) if words in (p.name for p in part.parameters)), 0)
        sees = any(part.role == "vision" for part in self.parts[:number] if part.is_block)
        moves = sees and self.family != "mllama" and len(self.parts[number].parameters) == 1
        order = range(len(self.parts))
        return (number, *(at for at in order if at != number)) if moves else tuple(order)

    @cached_property
    def in_turn(self) -> tuple[Part, ...]:
        """The parts in the order in which they run."""
        return tuple(self.parts[at] for at in self.executed)

    @cached_property
    def words_first(self) -> bool:
        """Whether words are looked up in front of a tower that stands before them."""
        return bool(self.executed) and self.executed[0] != 0

    @cached_property
    def tower(self) -> tuple[int, ...]:
        """Numbers of the parts that run between the words and the language model, where words are first."""
        return self.executed[1 : self.executed[0] + 1] if self.words_first else ()

    @cached_property
    def num_layers(self) -> int:
        return sum(part.count for part in self.blocks)

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Every parameter with its full name, in the order of ``module.named_parameters()``."""
        for part in self.parts:
            for index in range(part.count):
                yield from zip(part.names(index), part.parameters, strict=True)
