"""What an optimizer keeps for one tensor: names, bytes, and where they lie.

The tensor is whatever the optimizer is handed: a parameter (``single``, DDP), a local shard (FSDP2) or a flat
one-dimensional partition (ZeRO, FSDP1). A flat tensor changes two things: Adafactor cannot factor it, and the 8-bit
optimizers compare *its* size with their threshold.

Sources: torch/optim/{adam,sgd,_muon,_adafactor}.py (2.13), transformers/optimization.py (Adafactor, 5.24),
bitsandbytes/optim/optimizer.py (0.50), deepspeed/ops/{adam,lion} (0.19.8).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from math import prod

from estimators.values import dataclass
from estimators.workload import DTYPE_BYTES

# Where a state lies, said from the tensor's point of view.
BESIDE = "beside"  # on the device of the tensor itself: host RAM when that is offloaded
CPU = "cpu"  # always in host RAM
MANAGED = "managed"  # CUDA managed memory: outside torch's allocator, moves to the host when the card is full

MIN_8BIT_ELEMENTS = 4096  # bitsandbytes min_8bit_size: a smaller tensor keeps fp32 states
BLOCK_8BIT = 256  # elements that share one fp32 absmax
MIN_PAGED_ELEMENTS = 100_000  # bitsandbytes get_state_buffer: smaller buffers are not paged
MAP_BYTES = 256 * 4  # one code table: 256 fp32 values
SCALAR = 4  # torch's step counters and Adafactor's RMS: fp32, no dimension

EIGHT_BIT = ("adamw-8bit", "paged-adamw-8bit")
PAGED = ("paged-adamw", "paged-adamw-8bit")

# How an optimizer is carried out. ``bnb-trainer`` is bitsandbytes under the Hugging Face Trainer, which overrides
# nn.Embedding to 32 bit; ``hf`` is the Adafactor of transformers.
IMPLEMENTATIONS = ("foreach", "fused", "single", "ds-fused", "ds-cpu", "bnb", "bnb-trainer", "hf")


@dataclass(frozen=True, slots=True)
class State:
    """One tensor of optimizer state: ``bytes`` as stored, before any allocator rounds them."""

    name: str
    bytes: int
    place: str = BESIDE


@lru_cache(maxsize=65536)
def states(
    optimizer: str,
    shape: tuple[int, ...] | int,
    dtype: str = "fp32",
    impl: str = "foreach",
    kind: str = "linear",
    is_head: bool = False,
) -> tuple[State, ...]:
    """State tensors that exist for one tensor from the second step on: formulas P.2-P.5 of ``docs/formulas-memory.md``.

    ``shape`` of what the optimizer is handed (an int: flat). ``dtype`` of the states where the optimizer has a choice
    (``resolved_dtype``). ``kind`` and ``is_head`` are those of the parameter it came from: Muon and the 32-bit
    override of embeddings look at them.

    A Llama MLP matrix (14336 x 4096) under AdamW, foreach: two fp32 copies and a counter in host RAM.

    >>> [(s.name, s.bytes, s.place) for s in states("adamw", (14336, 4096))]
    [('exp_avg', 234881024, 'beside'), ('exp_avg_sq', 234881024, 'beside'), ('step', 4, 'cpu')]
    >>> sum(s.bytes for s in states("adamw-8bit", (14336, 4096), impl="bnb"))
    119275520
    >>> sum(s.bytes for s in states("adafactor", (14336, 4096), impl="hf"))
    73732
    """
    flat = isinstance(shape, int)
    shape = (shape,) if isinstance(shape, int) else shape
    numel = prod(shape)
    size = numel * DTYPE_BYTES[dtype]
    if optimizer in ("adamw", "adamw-fused"):
        return (State("exp_avg", size), State("exp_avg_sq", size), *_step(impl))
    if optimizer in ("adamw-8bit", *PAGED):
        return _bitsandbytes(optimizer, numel, kind == "embedding" and impl == "bnb-trainer")
    if optimizer == "adafactor":
        return _adafactor(shape, dtype, impl)
    if optimizer == "lion":
        return (State("exp_avg", size),)
    if optimizer == "sgd-momentum":
        return (State("momentum_buffer", size),)
    if optimizer == "muon":
        if is_muon_matrix(shape, kind, is_head, impl, flat):
            return (State("momentum_buffer", size),)
        return states("adamw", shape, dtype, impl)
    assert optimizer == "sgd", optimizer
    return ()


def state_bytes(
    optimizer: str,
    shape: tuple[int, ...] | int,
    dtype: str = "fp32",
    impl: str = "foreach",
    kind: str = "linear",
    is_head: bool = False,
    place: str = BESIDE,
) -> int:
    """Bytes of the states of one tensor in one place; ``tables_bytes`` comes on top, once per device.

    >>> state_bytes("adamw-fused", (1024, 256), impl="fused")
    2097156
    >>> state_bytes("paged-adamw-8bit", (1024, 1024), impl="bnb", place=MANAGED)
    2097152
    """
    return sum(s.bytes for s in states(optimizer, shape, dtype, impl, kind, is_head) if s.place == place)


def tables_bytes(optimizer: str) -> int:
    """Bytes shared by all tensors of one optimizer: the two code tables of 8-bit AdamW (``dynamic``, ``udynamic``)."""
    return 2 * MAP_BYTES if optimizer in EIGHT_BIT else 0


def resolved_dtype(optimizer: str, impl: str, tensor_dtype: str) -> str:
    """dtype of the states when nobody chose one: that of the tensor, unless the optimizer insists.

    bitsandbytes keeps fp32 (or 8-bit) states whatever the parameter is; transformers' Adafactor computes in fp32.

    >>> resolved_dtype("adamw", "fused", "bf16"), resolved_dtype("lion", "bnb-trainer", "bf16")
    ('bf16', 'fp32')
    """
    if optimizer in EIGHT_BIT:
        return "int8"
    if impl.startswith("bnb") or optimizer in PAGED or (optimizer == "adafactor" and impl == "hf"):
        return "fp32"
    return tensor_dtype


def is_muon_matrix(shape: tuple[int, ...], kind: str, is_head: bool, impl: str = "single", flat: bool = False) -> bool:
    """Whether Muon, rather than its companion AdamW, takes a parameter of this shape.

    torch.optim.Muon takes matrices only; by its documentation embeddings, head, biases and norms go to AdamW.
    DeepSpeed also sends it tensors of more dimensions (fused experts), and hands it flat partitions whose elements all
    come from such parameters (``kind`` linear; ``other`` is its AdamW group): deepspeed.set_optimizer_flags.
    """
    if kind in ("embedding", "norm", "other") or is_head:
        return False
    return flat or len(shape) >= 2 if impl.startswith("ds") else len(shape) == 2


def total_bytes(made: Iterable[State], place: str = BESIDE) -> int:
    """Sum over states in one place."""
    return sum(s.bytes for s in made if s.place == place)


def _step(impl: str) -> tuple[State, ...]:
    """The step counter: a tensor in torch (on the device only when fused), an int in DeepSpeed."""
    if impl.startswith("ds"):
        return ()
    return (State("step", SCALAR, BESIDE if impl == "fused" else CPU),)


def _bitsandbytes(optimizer: str, numel: int, keep_32bit: bool) -> tuple[State, ...]:
    """Two fp32 states, or two bytes an element and two fp32 absmax a block of 256; its step counter is an int."""
    place = MANAGED if optimizer in PAGED and numel >= MIN_PAGED_ELEMENTS else BESIDE
    if optimizer not in EIGHT_BIT or keep_32bit or numel < MIN_8BIT_ELEMENTS:
        return (State("state1", 4 * numel, place), State("state2", 4 * numel, place))
    absmax = 4 * -(-numel // BLOCK_8BIT)
    return (State("state1", numel, place), State("state2", numel, place),
            State("absmax1", absmax), State("absmax2", absmax))  # fmt: skip


def _adafactor(shape: tuple[int, ...], dtype: str, impl: str) -> tuple[State, ...]:
    """Row and column means of the squares for two dimensions and more, the squares themselves for one; no momentum.

    transformers' class works in fp32 and keeps the parameter's RMS as a scalar on the device; torch's works in the
    dtype of the gradient and keeps a counter in host RAM.
    """
    size = 4 if impl == "hf" else DTYPE_BYTES[dtype]
    scalar = State("RMS", SCALAR) if impl == "hf" else State("step", SCALAR, CPU)
    if len(shape) < 2:
        return (State("exp_avg_sq", size * prod(shape)), scalar)
    rows, cols = prod(shape[:-1]), prod(shape[:-2]) * shape[-1]
    return (State("exp_avg_sq_row", size * rows), State("exp_avg_sq_col", size * cols), scalar)
