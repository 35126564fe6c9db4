"""A live ``torch.nn.Module`` read into a spec: names, shapes, kinds, repeated blocks, shared weights and buffers.

torch is not imported: a module is whatever has ``named_parameters`` and ``named_modules``, and types are told by the
names of their classes, as peft and the wrapping policies do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

from estimators.errors import InputError, NotModelled
from estimators.model.spec import Buffer, ModelSpec, Parameter, Part
from estimators.values import dataclass, replace

DTYPES = {
    "float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
}  # fmt: skip
# Wrappers that keep the module inside under this attribute, with its names intact.
WRAPPERS = {"DistributedDataParallel": "module", "DataParallel": "module", "DeepSpeedEngine": "module",
            "OptimizedModule": "_orig_mod"}  # fmt: skip
# Words in the name or class of a block that tell what it reads; the first that matches.
ROLES = (
    ("vision", "vision"), ("visual", "vision"), ("vit", "vision"), ("audio", "audio"), ("projector", "projector"),
    ("decoder", "decoder"), ("encoder", "encoder"), ("bert", "encoder"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Piece:
    """A block found in a module: where it stands, and what makes it equal to its neighbours."""

    name: str
    class_name: str
    parameters: tuple[Parameter, ...]
    buffers: tuple[Buffer, ...]

    @property
    def stem(self) -> str:
        """The name with ``{}`` in place of the index."""
        head, dot, index = self.name.rpartition(".")
        return f"{head}{dot}{{}}" if index.isdecimal() else self.name

    @property
    def index(self) -> int:
        index = self.name.rpartition(".")[2]
        return int(index) if index.isdecimal() else 0

    @property
    def part(self) -> Part:
        """A run of this one alone."""
        role = _role(self.name, self.class_name)
        return Part(self.parameters, 1, self.stem, self.index, self.class_name, role, self.buffers)

    def follows(self, part: Part) -> bool:
        """Whether this is the next of a run."""
        alike = (self.class_name, self.parameters, self.buffers) == (part.class_name, part.parameters, part.buffers)
        return alike and self.stem == part.prefix and "{}" in part.prefix and self.index == part.first + part.count


def read_module(module: Any, *, shapes: str = "module", source: str = "live module") -> ModelSpec:
    """The spec of a module, in the order of its parameters. Frozen parameters and odd dtypes are kept as they are.

    Raises ``InputError`` for a module without parameters, ``NotModelled`` for one that is already sharded or
    quantised: its shapes are no longer those of the network.
    """
    module = _unwrapped(module)
    modules = dict(module.named_modules())
    owners = {name: _owner(modules, name) for name, _ in module.named_parameters(remove_duplicate=False)}
    first: dict[int, str] = {}
    tied: dict[str, str] = {}
    parameters: dict[str, Any] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if id(parameter) in first:
            tied[name] = first[id(parameter)]
        else:
            first[id(parameter)] = name
            parameters[name] = parameter
    if not parameters:
        raise InputError(f"module {type(module).__name__} has no parameters; give the network itself")
    _refuse_sharded(modules, parameters)
    common = _common_dtype(parameters)
    read = {name: _parameter(module, name, p, owners[name], common) for name, p in parameters.items()}
    config = _config(module)
    return ModelSpec(
        name=str(config.get("_name_or_path") or type(module).__name__),
        family=str(config.get("model_type") or type(module).__name__),
        class_name=type(module).__name__,
        parts=tuple(_parts(module, modules, read)),
        config=config,
        tied=tied,
        embedding=_embedding(module, modules, "get_input_embeddings"),
        head=_embedding(module, modules, "get_output_embeddings"),
        shapes=shapes,
        source=source,
    )


def kind_of(module: Any) -> str:
    """The ``Parameter.kind`` of what a module owns, told by the names of its classes."""
    name = type(module).__name__
    bases = {base.__name__ for base in type(module).__mro__}
    for base, kind in (("Linear", "linear"), ("Conv1D", "conv1d"), ("Embedding", "embedding")):
        if base in bases:
            return kind
    if "Norm" in name:
        return "norm"
    if "_ConvNd" in bases:
        return "conv"
    return "experts" if "Experts" in name else "other"


def blocks_of(module: Any, modules: Mapping[str, Any]) -> list[str]:
    """Names of the repeated blocks, outermost only.

    Blocks are what the class checkpoints, and what it keeps in a ModuleList and does not split; for a module that says
    neither, the class that the longest ModuleList repeats.
    """
    listed = {type(inner).__name__ for m in modules.values() if type(m).__name__ == "ModuleList" for inner in m}
    wanted = listed & set(getattr(module, "_no_split_modules", None) or ())
    wanted |= {type(m).__name__ for m in modules.values() if _is_checkpointed(m)}
    if not wanted:
        lists = [m for m in modules.values() if type(m).__name__ == "ModuleList" and len(m) > 1]
        wanted = {_most_frequent(max(lists, key=_repeats))} if lists else set()
    found: list[str] = []
    for name, inner in modules.items():
        inside = bool(found) and name.startswith(f"{found[-1]}.")
        if name and type(inner).__name__ in wanted and not inside:
            found.append(name)
    return found


def _is_checkpointed(module: Any) -> bool:
    """A layer of transformers that recomputes itself in backward."""
    return any(base.__name__ == "GradientCheckpointingLayer" for base in type(module).__mro__)


def _unwrapped(module: Any) -> Any:
    while type(module).__name__ in WRAPPERS:
        module = getattr(module, WRAPPERS[type(module).__name__])
    return module


def _owner(modules: Mapping[str, Any], name: str) -> Any:
    return modules.get(name.rpartition(".")[0])


def _refuse_sharded(modules: Mapping[str, Any], parameters: Mapping[str, Any]) -> None:
    if any(type(m).__name__ == "FullyShardedDataParallel" for m in modules.values()):
        raise NotModelled("the module is wrapped in FSDP, which flattened its parameters; give it before wrapping")
    for name, parameter in parameters.items():
        dtype = str(parameter.dtype).removeprefix("torch.")
        if dtype not in DTYPES:
            raise NotModelled(f"parameter {name} is stored as {dtype}; give the module as it is before quantisation")


def _shape(parameter: Any) -> tuple[int, ...]:
    """The whole shape, also under ZeRO-3, which leaves empty tensors behind."""
    return tuple(int(size) for size in getattr(parameter, "ds_shape", parameter.shape))


def _common_dtype(parameters: Mapping[str, Any]) -> str:
    """The dtype of most elements; parameters that have it carry no dtype of their own."""
    elements: dict[str, int] = {}
    for parameter in parameters.values():
        dtype = str(parameter.dtype)
        elements[dtype] = elements.get(dtype, 0) + int(parameter.numel())
    return max(elements, key=lambda dtype: elements[dtype])


def _parameter(module: Any, name: str, parameter: Any, owner: Any, common: str) -> Parameter:
    dtype = str(parameter.dtype)
    return Parameter(
        name,
        _shape(parameter),
        kind_of(owner),
        keep_fp32=keep_fp32(module, name),
        trainable=bool(parameter.requires_grad),
        dtype=None if dtype == common else DTYPES[dtype.removeprefix("torch.")],
    )


def keep_fp32(module: Any, name: str) -> str:
    """How ``from_pretrained`` treats a parameter: the two lists of its class, matched as whole parts of the name."""

    def listed(patterns: Any) -> bool:
        return any(re.search(rf"(^|\.){pattern}($|\.)", name) for pattern in patterns or ())

    if listed(getattr(module, "_keep_in_fp32_modules_strict", None)):
        return "16bit"
    return "fp16" if listed(getattr(module, "_keep_in_fp32_modules", None)) else ""


def _parts(module: Any, modules: Mapping[str, Any], read: Mapping[str, Parameter]) -> list[Part]:
    """Runs of equal blocks, and the root parameters between them, in the order of the parameters."""
    blocks = frozenset(blocks_of(module, modules))
    buffers = _buffers(module, modules)
    parts: list[Part] = []
    for block, members in groupby(read.values(), lambda parameter: _enclosing(blocks, parameter.name)):
        if not block:
            parts.append(Part(tuple(members)))
            continue
        piece = _piece(block, modules[block], members, buffers)
        if parts and piece.follows(parts[-1]):
            parts[-1] = replace(parts[-1], count=parts[-1].count + 1)
        else:
            parts.append(piece.part)
    loose = tuple(b for b in buffers.values() if not _enclosing(blocks, b.name))
    if loose:
        roots = [i for i, part in enumerate(parts) if not part.is_block]
        if not roots:
            parts.append(Part(()))
        last = roots[-1] if roots else -1
        parts[last] = replace(parts[last], buffers=loose)
    return parts


def _enclosing(blocks: frozenset[str], name: str) -> str:
    """The block that a tensor is inside of; empty for the root."""
    head = name.rpartition(".")[0]
    while head and head not in blocks:
        head = head.rpartition(".")[0]
    return head


def _piece(name: str, block: Any, members: Iterator[Parameter], buffers: Mapping[str, Buffer]) -> _Piece:
    stem = f"{name}."
    inner = tuple(replace(p, name=p.name.removeprefix(stem)) for p in members)
    own = tuple(
        replace(b, name=full.removeprefix(stem)) for full, b in buffers.items() if full.startswith(stem)
    )  # fmt: skip
    return _Piece(name, type(block).__name__, inner, own)


def _buffers(module: Any, modules: Mapping[str, Any]) -> dict[str, Buffer]:
    found = {}
    for name, tensor in module.named_buffers():
        transient = getattr(_owner(modules, name), "_non_persistent_buffers_set", ())
        dtype = str(tensor.dtype).removeprefix("torch.")
        persistent = name.rpartition(".")[2] not in transient
        found[name] = Buffer(name, tuple(int(s) for s in tensor.shape), DTYPES.get(dtype, dtype), persistent)
    return found


def _most_frequent(modules: Any) -> str:
    """The class that a ModuleList has most of."""
    classes = [type(m).__name__ for m in modules]
    return max(sorted(set(classes)), key=classes.count)


def _repeats(modules: Any) -> int:
    """How often it has it."""
    return [type(m).__name__ for m in modules].count(_most_frequent(modules))


def _role(name: str, class_name: str) -> str:
    text = f"{name} {class_name}".lower()
    return next((role for word, role in ROLES if word in text), "decoder")


def _config(module: Any) -> Mapping[str, Any]:
    config = getattr(module, "config", None)
    if isinstance(config, Mapping):
        return config
    to_dict = getattr(config, "to_dict", None)
    return to_dict() if callable(to_dict) else {}


def _embedding(module: Any, modules: Mapping[str, Any], getter: str) -> str:
    """The name of the module that a getter returns; empty when there is none, or it refuses."""
    try:
        wanted = getattr(module, getter)()
    except (AttributeError, NotImplementedError, TypeError):
        return ""
    return next((name for name, inner in modules.items() if inner is wanted), "") if wanted is not None else ""
