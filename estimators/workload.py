"""What is trained and how: the fields of the contract, checked. A field that nobody gave is None until a stack settles it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from operator import attrgetter
from typing import Any

from estimators.errors import IllegalCombination, InputError, UnknownName, short
from estimators.values import dataclass, fields, replace

DTYPE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1, "uint8": 1}
METHODS = ("full", "lora", "dora", "qlora", "freeze")
QUANTS = ("nf4", "nf4-double", "int8", "gptq4")
PRECISIONS = ("bf16-mixed", "fp16-mixed", "bf16", "fp16", "fp32")
OPTIMIZERS = (
    "adamw", "adamw-fused", "adamw-8bit", "paged-adamw", "paged-adamw-8bit", "adafactor", "lion", "sgd",
    "sgd-momentum", "muon",
)  # fmt: skip
CHECKPOINTINGS = ("none", "full", "selective", "every-2", "offload")
ATTENTIONS = ("eager", "sdpa", "flash")
LOSSES = ("plain", "fused", "chunked")
PADDINGS = ("none", "right")
STACKS = (
    "trainer", "trl", "accelerate", "deepspeed", "torch", "torchtitan", "torchtune", "litgpt", "composer", "swift",
    "llamafactory", "axolotl",
)  # fmt: skip
LOSS_KERNELS = ("in-place", "compiled")
SEQ_KINDS = ("fixed", "longest", "cap")
ADAPTER_METHODS = ("lora", "dora", "qlora")
WEIGHT_DTYPES = ("fp32", "bf16", "fp16")
STATE_DTYPES = (*WEIGHT_DTYPES, "int8")

_WORDS: Mapping[str, tuple[str, ...]] = {
    "method": METHODS, "quant": QUANTS, "precision": PRECISIONS, "optimizer": OPTIMIZERS,
    "checkpointing": CHECKPOINTINGS, "attention": ATTENTIONS, "loss": LOSSES, "padding": PADDINGS, "stack": STACKS,
    "loss_kernel": LOSS_KERNELS, "seq_kind": SEQ_KINDS, "adapter_dtype": WEIGHT_DTYPES, "param_dtype": WEIGHT_DTYPES,
    "state_dtype": STATE_DTYPES, "reduce_dtype": WEIGHT_DTYPES,
}  # fmt: skip
_COUNTS = {
    "lora_rank": 65536, "seq_len": 2**27, "micro_batch": 2**20, "grad_accum": 2**20, "images": 2**16,
    "image_patches": 2**20,
}  # fmt: skip
_FLAGS = ("compile", "optimizer_in_backward", "kbit_prepare")
FIELD_ALIASES = {
    "max_seq_length": "seq_len", "max_seq_len": "seq_len", "sequence_length": "seq_len",
    "per_device_train_batch_size": "micro_batch", "batch_size": "micro_batch",
    "gradient_accumulation_steps": "grad_accum", "r": "lora_rank", "target_modules": "lora_targets",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Workload:
    """The workload as it was given, with the contract's plain defaults.

    ``optimizer``, ``param_dtype``, ``state_dtype``, ``reduce_dtype``, ``adapter_dtype`` and ``kbit_prepare`` may be
    None: then stack, version and engine decide (``estimators.stacks.settle``). ``images``: of a sample, tiles counted
    one by one; ``image_patches``: of an image, where the model takes any size (Qwen2-VL: 1024 if not given).
    """

    method: str = "full"
    lora_rank: int = 16
    lora_targets: str | tuple[str, ...] = "all-linear"
    modules_to_save: tuple[str, ...] = ()
    freeze: tuple[str, ...] = ()
    adapter_dtype: str | None = None
    quant: str = "nf4-double"
    precision: str = "bf16-mixed"
    param_dtype: str | None = None
    state_dtype: str | None = None
    reduce_dtype: str | None = None
    optimizer: str | None = None
    seq_len: int = 2048
    micro_batch: int = 1
    grad_accum: int = 1
    images: int = 1
    image_patches: int | None = None
    checkpointing: str = "full"
    attention: str = "sdpa"
    loss: str = "plain"
    compile: bool = False
    padding: str = "none"
    optimizer_in_backward: bool | None = None
    kbit_prepare: bool | None = None
    loss_kernel: str | None = None
    seq_kind: str | None = None
    stack: str = "trainer"
    versions: tuple[tuple[str, str], ...] = ()

    @property
    def has_adapters(self) -> bool:
        return self.method in ADAPTER_METHODS


FIELDS = tuple(f.name for f in fields(Workload))
SIZES = {name: FIELDS.index(name) for name in ("micro_batch", "seq_len", "images")}
_values = attrgetter(*FIELDS)


def workload(**given: Any) -> Workload:
    """Keyword arguments (aliases allowed) -> ``Workload``.

    Raises ``UnknownName`` for a field that does not exist, ``InputError`` for a value outside its range and
    ``IllegalCombination`` for values that exclude each other.
    """
    plain, sizes = apart(given)
    return _same(plain, tuple(sorted(sizes.items())))


def apart(given: Mapping[str, Any]) -> tuple[Workload, Mapping[str, int]]:
    """A workload at the plain sizes, and the sizes that were given: what decides settings, and what does not."""
    checked: dict[str, Any] = {}
    sizes: dict[str, int] = {}
    for key, value in given.items():
        name = FIELD_ALIASES.get(key, key)
        if name not in FIELDS:
            raise UnknownName("workload field", key, (*FIELDS, *FIELD_ALIASES))
        into = sizes if name in SIZES else checked
        if name in into:
            raise InputError(f"{name} is given twice (also as {key}); give it once")
        if value is not None:
            into[name] = _checked(name, value)
    try:
        return _combined(tuple(checked.items())), sizes
    except TypeError:  # an unhashable value slipped through a list of lists
        raise InputError("workload values must be words, numbers or lists of words") from None


@lru_cache(maxsize=8192)
def _combined(items: tuple[tuple[str, Any], ...]) -> Workload:
    made = Workload(**dict(items))
    given = {name for name, _ in items}
    if made.method not in ADAPTER_METHODS:
        for field_name in ("lora_rank", "lora_targets", "adapter_dtype"):
            if field_name in given:
                raise IllegalCombination(f"{field_name} needs an adapter; give method lora, dora or qlora")
    if "quant" in given and made.method != "qlora":
        raise IllegalCombination(f"quant {made.quant} describes the base weights of method qlora; give method qlora")
    if made.freeze and made.method != "freeze":
        raise IllegalCombination("freeze lists the modules that do not train; give method freeze")
    return made


def sized(plain: Workload, sizes: Mapping[str, int]) -> Workload:
    """The same workload at other sizes, of which nothing is checked."""
    if not sizes:
        return plain
    values = list(_values(plain))
    for name, size in sizes.items():
        values[SIZES[name]] = size
    return Workload(*values)


@lru_cache(maxsize=8192)
def _same(plain: Workload, sizes: tuple[tuple[str, int], ...]) -> Workload:
    """Equal questions get the same object."""
    return sized(plain, dict(sizes))


@lru_cache(maxsize=65536)
def unsized(asked: Workload) -> Workload:
    """The same workload at one token count for all: settings and ledgers do not depend on batch and sequence."""
    return replace(asked, micro_batch=1, seq_len=2048, images=1)


def _checked(name: str, value: Any) -> Any:
    if name in _WORDS:
        words = _WORDS[name]
        if not isinstance(value, str) or value.lower() not in words:
            raise InputError(f"{name} {short(value)} is not one of {', '.join(words)}")
        return value.lower()
    if name in _COUNTS:
        return whole_number(name, value, _COUNTS[name])
    if name in _FLAGS:
        if not isinstance(value, bool):
            raise InputError(f"{name} {short(value)} is not true or false")
        return value
    if name == "versions":
        return _versions(value)
    return _names(name, value)


def whole_number(name: str, value: Any, maximum: int) -> int:
    """A count from 1 to ``maximum``, from an int or its spelling; raises ``InputError``."""
    try:
        number = value if isinstance(value, int) else int(str(value).strip())
    except ValueError:
        number = None
    if number is None or isinstance(value, bool):
        raise InputError(f"{name} {short(value)} is not a whole number")
    if not 1 <= number <= maximum:
        raise InputError(f"{name} {short(value)} is out of range; give 1 to {maximum:,}")
    return number


def _names(name: str, value: Any) -> Any:
    if isinstance(value, str):
        if name == "lora_targets" and value in ("all-linear", "attention"):
            return value
        value = [part.strip() for part in value.split(",")]
    if not isinstance(value, list | tuple | set) or not all(isinstance(v, str) and 0 < len(v) < 500 for v in value):
        raise InputError(f"{name} {short(value)} is not a list of names")
    return tuple(value)


def _versions(value: Any) -> tuple[tuple[str, str], ...]:
    if isinstance(value, str):
        pairs = dict(part.partition("=")[::2] for part in value.split(",") if part)
    elif isinstance(value, Mapping | tuple):
        pairs = dict(value)
    else:
        raise InputError(f"versions {short(value)}: write torch=2.13.0,deepspeed=0.19.8")
    for package, version in pairs.items():
        if not isinstance(version, str) or not version[:1].isdigit() or len(version) > 40:
            raise InputError(f"versions: {short(package)} = {short(version)} is not a version; write {package}=1.2.3")
    return tuple(sorted((str(k), v) for k, v in pairs.items()))
