"""LoRA and DoRA as peft 0.21 inserts them: which modules, which new tensors, under which names and in which order.

Sources: peft/tuners/tuners_utils.py (matching, ``all-linear``), peft/tuners/lora/layer.py (Linear, Embedding, Conv,
ParamWrapper), peft/tuners/lora/dora.py, peft/utils/other.py (ModulesToSaveWrapper). The prefix
``base_model.model.`` that peft puts before every name is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import groupby

from estimators.errors import IllegalCombination
from estimators.model.methods.experts import DOUBLED, EXPERT_TARGETS, fused_targets, wrapped_experts
from estimators.model.methods.matching import ends_in, full_name, module_of, require_known, runs
from estimators.model.spec import ModelSpec, Parameter, Part
from estimators.values import dataclass, replace

ALL_LINEAR = "all-linear"
ATTENTION = "attention"
ATTENTION_PATHS = ("attn", "attention")
LINEARS = ("linear", "conv1d")


@dataclass(frozen=True, slots=True)
class Adapter:
    """What is inserted, and where: ``modules`` by path ending, ``parameters`` (fused experts, routers) likewise."""

    rank: int
    dora: bool
    dtype: str
    modules: tuple[str, ...]
    parameters: tuple[str, ...]
    saved: tuple[str, ...]


def insert_adapters(
    model: ModelSpec, targets: str | tuple[str, ...], rank: int, dora: bool, saved: tuple[str, ...], dtype: str
) -> ModelSpec:
    """``model`` frozen, with adapters of ``rank`` on ``targets`` and trainable copies of the modules in ``saved``."""
    modules, parameters = _split(model, target_names(model, targets))
    if dora and parameters:
        raise IllegalCombination(
            "dora cannot adapt fused experts or routers (peft wraps them as parameters); name the attention "
            "projections in lora_targets, or use lora"
        )
    adapter = Adapter(rank, dora, dtype, modules, parameters, saved)
    used: set[str] = set()
    names: dict[str, str] = {}
    parts: list[Part] = []
    for part in model.parts:
        for piece, plan in runs(part, (*modules, *saved), partial(_plan, part, adapter, used)):
            parts.append(replace(piece, parameters=_rebuilt(piece, plan, adapter, names)))
    parts = _tied_head(model, adapter, parts, used)
    if not isinstance(targets, str) and not any(_used_targets(model, targets, used)):
        require_known("LoRA target", targets, (), model)  # like peft: an error only where no name of the list matches
    require_known("module to save", saved, used, model)
    tied = {names.get(a, a): names.get(b, b) for a, b in model.tied.items()}
    return replace(model, parts=tuple(parts), tied=tied)


def target_names(model: ModelSpec, targets: str | tuple[str, ...]) -> tuple[str, ...]:
    """The endings of module paths that a word means for this network, shortest that are unambiguous.

    ``all-linear`` is every linear but the head; ``attention`` the linears under a module named after attention.
    """
    if not isinstance(targets, str):
        return targets
    linears = dict.fromkeys(_linears(model))
    wanted = [
        m
        for m in linears
        if m != model.head and (targets == ALL_LINEAR or any(word in m.lower() for word in ATTENTION_PATHS))
    ]
    if not wanted:
        raise IllegalCombination(f"{model.name or model.class_name} has no module that {targets} means; list names")
    chosen = set(wanted)
    others = [m for m in _modules(model) if m not in chosen]
    endings = tuple(dict.fromkeys(_ending(m, others) for m in wanted))
    expert_leaves = EXPERT_TARGETS.get(fused_targets(model), {}) if targets == ALL_LINEAR else {}
    return tuple(dict.fromkeys((*endings, *expert_leaves)))


def _linears(model: ModelSpec) -> Iterator[str]:
    """Paths of linear modules with a block's index left open, in order."""
    for part in model.parts:
        for p in part.parameters:
            if p.kind in LINEARS and p.name.endswith("weight"):
                yield full_name(part.prefix, module_of(p.name))


def _modules(model: ModelSpec) -> Iterator[str]:
    """Paths of every module that owns parameters, a block's index left open."""
    for part in model.parts:
        for p in part.parameters:
            yield full_name(part.prefix, module_of(p.name))


def _ending(path: str, others: Iterable[str]) -> str:
    """The shortest ending of ``path`` that no other module has; the whole path inside its block at most."""
    pieces = path.split("{}.")[-1].split(".")
    for length in range(1, len(pieces) + 1):
        ending = ".".join(pieces[-length:])
        if not any(ends_in(other, (ending,)) for other in others):
            return ending
    return path


def _split(model: ModelSpec, names: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Targets as (modules, parameters): peft turns the names of experts that transformers 5 fused into parameters."""
    mapping = EXPERT_TARGETS.get(fused_targets(model), {})
    modules: list[str] = []
    parameters: list[str] = []
    for name in names:
        leaf = name.rpartition(".")[2]
        if leaf in mapping:
            parameters.append(mapping[leaf])
        else:
            modules.append(name)
    fused = {name.rpartition(".")[2] for name in names} & {old for old, new in mapping.items() if new == DOUBLED}
    if len(fused) == 1:
        missing = next(old for old, new in mapping.items() if new == DOUBLED and old not in fused)
        raise IllegalCombination(
            f"LoRA target {fused.pop()} is fused with {missing} in this family's experts; name both or neither"
        )
    return tuple(modules), tuple(sorted(set(parameters)))


def _used_targets(model: ModelSpec, targets: tuple[str, ...], used: set[str]) -> Iterator[str]:
    """User's names of which at least one tensor was found, under their own or their fused name."""
    mapping = EXPERT_TARGETS.get(fused_targets(model), {})
    for name in targets:
        if name in used or mapping.get(name.rpartition(".")[2]) in used:
            yield name


Plan = tuple[tuple[str, str], ...]  # (module, what happens to it: "", "lora", "save", "wrap")


def _plan(part: Part, adapter: Adapter, used: set[str], stem: str) -> Plan:
    """What becomes of each module of a piece. Raises where an adapter fits no such module."""
    plan: list[tuple[str, str]] = []
    for module, group in groupby(part.parameters, key=lambda p: module_of(p.name)):
        parameters = list(group)
        path = full_name(stem, module)
        action = ""
        hits = [name for name in adapter.modules if ends_in(path, (name,))]
        saves = [name for name in adapter.saved if path.endswith(name)]
        wraps = [n for n in adapter.parameters for p in parameters if f"{path}.{_leaf(p)}".endswith(f".{n}")]
        if saves:
            action = "save"
        elif hits:
            action = "lora"
            _require_adaptable(path, parameters)
        elif wraps:
            action = "wrap"
        used.update(hits, saves, wraps)
        plan.append((module, action))
    return tuple(plan)


def _leaf(p: Parameter) -> str:
    return p.name.rpartition(".")[2]


def _require_adaptable(path: str, parameters: list[Parameter]) -> None:
    kind = parameters[0].kind
    if kind not in (*LINEARS, "embedding", "conv"):
        raise IllegalCombination(
            f"LoRA target {path}: peft adapts linear, embedding and convolution modules, not {kind}"
        )


def _rebuilt(part: Part, plan: Plan, adapter: Adapter, names: dict[str, str]) -> tuple[Parameter, ...]:
    """The parameters of a piece after its plan; ``names`` collects old -> new full names of single pieces."""
    out: list[Parameter] = []
    groups = groupby(part.parameters, key=lambda p: module_of(p.name))
    for (module, action), (_, group) in zip(plan, groups, strict=True):
        parameters = [replace(p, trainable=False) for p in group]
        if action == "lora":
            made = (*_renamed(parameters, module, "base_layer"), *_lora(module, parameters, adapter))
        elif action == "save":
            made = _saved(module, parameters)
        elif action == "wrap":
            made = wrapped_experts(module, parameters, adapter.parameters, adapter.rank, adapter.dtype)
        else:
            made = tuple(parameters)
        if part.count == 1 and not part.is_block:
            names.update({p.name: q.name for p, q in zip(parameters, made, strict=False)})
        out.extend(made)
    return tuple(out)


def _renamed(parameters: list[Parameter], module: str, inserted: str) -> tuple[Parameter, ...]:
    return tuple(replace(p, name=full_name(module, f"{inserted}.{_leaf(p)}")) for p in parameters)


def _saved(module: str, parameters: list[Parameter]) -> tuple[Parameter, ...]:
    """The original stays, frozen; a copy trains."""
    copies = (replace(p, trainable=True, dtype=None, stored_bytes=None, side_bytes=0) for p in parameters)
    return (
        *_renamed(parameters, module, "original_module"),
        *_renamed(list(copies), module, "modules_to_save.default"),
    )


def _lora(module: str, parameters: list[Parameter], adapter: Adapter) -> tuple[Parameter, ...]:
    """A [r, in] and B [out, r], and DoRA's magnitudes [out]; transposed for embeddings, kernels for convolutions."""
    weight = next(p for p in parameters if _leaf(p) == "weight")
    rank, shape = adapter.rank, weight.shape
    made: list[tuple[str, tuple[int, ...]]]
    if weight.kind == "embedding":
        rows, width = shape
        made = [("lora_embedding_A.default", (rank, rows)), ("lora_embedding_B.default", (width, rank))]
        magnitude: tuple[int, ...] = (width,)
    elif weight.kind == "conv":
        made = [
            ("lora_A.default.weight", (rank, *shape[1:])),
            ("lora_B.default.weight", (shape[0], rank, *(1,) * (len(shape) - 2))),
        ]
        magnitude = (1, shape[0], *(1,) * (len(shape) - 2))
    else:
        rows, columns = shape[::-1] if weight.kind == "conv1d" else shape
        made = [("lora_A.default.weight", (rank, columns)), ("lora_B.default.weight", (rows, rank))]
        magnitude = (rows,)
    if adapter.dora:
        made.append(("lora_magnitude_vector.default.weight", magnitude))
    kind = weight.kind if weight.kind == "conv" else "linear"
    return tuple(
        Parameter(full_name(module, name), shape, kind if len(shape) > 1 else "other", dtype=adapter.dtype)
        for name, shape in made
    )


def _tied_head(model: ModelSpec, adapter: Adapter, parts: list[Part], used: set[str]) -> list[Part]:
    """A head that shares the embedding's weight has no parameter of its own; what is added to it comes last."""
    name = f"{model.head}.weight"
    if not model.head or name not in model.tied:
        return parts
    saves = [s for s in adapter.saved if model.head.endswith(s)]
    hits = [t for t in adapter.modules if ends_in(model.head, (t,))]
    used.update(saves, hits)
    if not saves and not hits:
        return parts
    shape = next(p.shape for n, p in model.named_parameters() if n == model.tied[name])
    weight = Parameter(name, shape, "linear", trainable=False)
    new = _saved(model.head, [weight])[1:] if saves else _lora(model.head, [weight], adapter)
    last = max(i for i, part in enumerate(parts) if not part.is_block)
    parts[last] = replace(parts[last], parameters=(*parts[last].parameters, *new))
    return parts


def wide_adapters(model: ModelSpec, rank: int) -> str:
    """Says that a rank is larger than a side of some weight that it adapts; empty where none is.

    peft takes any rank; B A has the rank of the weight's smaller side at most, so what lies above trains nothing new.
    """
    a, b = "lora_A.default.weight", "lora_B.default.weight"
    sides: dict[str, int] = {}
    for part in model.parts:
        for p in part.parameters:
            if p.name.endswith((a, b)) and len(p.shape) == 2:
                module = p.name.removesuffix(a).removesuffix(b).rstrip(".").rsplit(".", 1)[-1]
                side = p.shape[1] if p.name.endswith(a) else p.shape[0]
                sides[module] = min(side, sides.get(module, side))
    module = min(sides, key=lambda name: sides[name], default="")
    if not module or sides[module] >= rank:
        return ""
    return (
        f"lora_rank {rank} is larger than the smaller side of {module} ({sides[module]:,}): peft takes it, and what lies "
        f"above {sides[module]:,} costs memory and trains nothing that full training of that weight would not"
    )
