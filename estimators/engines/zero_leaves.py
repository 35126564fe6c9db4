"""The modules of a block as ZeRO-3 hooks them, and what names of parameters do not say about them.

Mixtures of experts that it takes for one module: gathered whole, no hooks inside, gradients reduced together. Source:
deepspeed/runtime/zero/leaf_module_config.py (``DEFAULT_LEAF_MODULE_CLASSES``), engine.py
(``apply_zero_leaf_module_config``), stage3.py (``reduce_leaf_module_grads``).

Modules without parameters: each is a step of the trace, at which the coordinator prefetches as much again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from estimators.model.spec import ModelSpec, Part
from estimators.values import NamedTuple

# Class of a block -> the place in it of the class that DeepSpeed names in full; classes derived from that are not named
_PLACES: Mapping[str, str] = {
    "MixtralDecoderLayer": "mlp",
    "Qwen2MoeDecoderLayer": "mlp",
    "Qwen3MoeDecoderLayer": "mlp",
}

Silent = Mapping[str, tuple[str, ...]]
TABLES = ("encoder.embed_tokens", "decoder.embed_tokens", "model.encoder.embed_tokens", "model.decoder.embed_tokens")
# Class of a block -> modules without parameters, by the one in front (transformers/models/{gpt2,t5}/modeling_*.py)
SILENT: Mapping[str, Silent] = {
    "GPT2Block": {
        "attn.c_proj": ("attn.resid_dropout",), "mlp.c_fc": ("mlp.act",), "mlp.c_proj": ("mlp.dropout",),
        "transformer.wpe": ("transformer.drop",),
    },
    "T5Block": {
        "layer.0.SelfAttention.o": ("layer.0.dropout",), "layer.1.EncDecAttention.o": ("layer.1.dropout",),
        "layer.1.DenseReluDense.wi": ("layer.1.DenseReluDense.act", "layer.1.DenseReluDense.dropout"),
        "layer.1.DenseReluDense.wi_0": ("layer.1.DenseReluDense.act",),
        "layer.1.DenseReluDense.wi_1": ("layer.1.DenseReluDense.dropout",),
        "layer.1.DenseReluDense.wo": ("layer.1.dropout",),
        "layer.2.DenseReluDense.wi": ("layer.2.DenseReluDense.act", "layer.2.DenseReluDense.dropout"),
        "layer.2.DenseReluDense.wi_0": ("layer.2.DenseReluDense.act",),
        "layer.2.DenseReluDense.wi_1": ("layer.2.DenseReluDense.dropout",),
        "layer.2.DenseReluDense.wo": ("layer.2.dropout",),
        "encoder.embed_tokens": ("encoder.dropout",), "encoder.final_layer_norm": ("encoder.dropout",),
        "decoder.embed_tokens": ("decoder.dropout",), "decoder.final_layer_norm": ("decoder.dropout",),
    },
}  # fmt: skip
# Dictionaries of adapters: they have no forward of their own.
_NOT_CALLED = ("lora_A", "lora_B", "lora_dropout", "lora_embedding_A", "lora_embedding_B", "lora_magnitude_vector")


class Leaf(NamedTuple):
    """A module without children, the parameters that it owns, and the block around it.

    ``arriving``: of one that has children but that DeepSpeed takes for one module, its parameters in the order of their
    gradients.
    """

    path: str
    owned: tuple[int, ...]
    block: str
    arriving: tuple[int, ...] = ()

    @property
    def is_whole(self) -> bool:
        return bool(self.arriving)


def leaf_in(part: Part) -> str:
    """Where a block has such a module; nothing for other blocks, and for dense layers between mixtures."""
    place = _PLACES.get(part.class_name, "")
    experts = f"{place}.experts."
    return place if place and any(p.name.startswith(experts) for p in part.parameters) else ""


def elements_below(model: ModelSpec, path: str) -> int:
    """Of a module around blocks: elements of all parameters inside."""
    stem = f"{path}." if path else ""
    return sum(
        part.count * p.numel
        for part in model.parts
        for p in part.parameters
        if f"{part.prefix}.{p.name}".lstrip(".").startswith(stem)
    )


def with_silent(leaves: Iterable[Leaf], block: str, silent: Silent) -> Iterator[Leaf]:
    """Modules with those behind them that own nothing; one with an adapter has leaves inside."""
    if not silent:
        yield from leaves
        return
    stem = f"{block}." if block else ""
    inside: str = ""
    behind: tuple[str, ...] = ()
    for leaf in leaves:
        if inside and not f"{leaf.path}.".startswith(inside):
            yield from (Leaf(stem + path, (), block) for path in behind)
            inside = ""
        yield leaf
        path = next((p for p in silent if f"{leaf.path}.".startswith(f"{stem}{p}.")), "")
        inside, behind = f"{stem}{path}." if path else "", silent.get(path, ())
    if inside:
        yield from (Leaf(stem + path, (), block) for path in behind)


def with_tables(leaves: list[Leaf], tied: Mapping[str, int], silent: Silent) -> list[Leaf]:
    """Stacks that share one table look words up in modules of their own (T5, BART): ``tied`` gives the number of what a
    module stands for. The table itself is never called."""
    tables = {path.rpartition(".")[0]: Leaf(path, (number,), "") for path, number in tied.items() if path in TABLES}
    if not tables:
        return leaves
    shared = {number for table in tables.values() for number in table.owned}
    found: list[Leaf] = []
    for leaf in leaves:
        if not shared.isdisjoint(leaf.owned):
            continue
        stack = next((stack for stack in tables if leaf.path.startswith(f"{stack}.")), "")
        if stack:
            found.extend(with_silent([tables.pop(stack)], "", silent))
        found.append(leaf)
    return found


def leaves_of(names: list[str], order: list[int], base: int, block: str, whole: str) -> Iterator[Leaf]:
    """Modules that own parameters, in the order in which they run, and the silent ones that are called between.

    ``whole``: one that is taken with all inside it.
    """
    path = ""
    owned: list[int] = []
    for number in [*order, -1]:
        here = names[number - base].rpartition(".")[0] if number >= 0 else ""
        if whole and f"{here}.".startswith(f"{whole}."):
            here = whole
        if whole and path == whole != here:
            yield Leaf(path, tuple(sorted(owned)), block, tuple(reversed(owned)))
            owned = []
        elif here != path and owned:
            if ".lora_A." in path:
                yield Leaf(path.replace(".lora_A.", ".lora_dropout."), (), block)
            yield Leaf(path, tuple(sorted(owned)), block)
            gate, _, _ = path.partition(".gate_proj")
            if gate != path and not here.startswith(gate + ".gate_proj"):
                yield Leaf(gate + ".act_fn", (), block)
            owned = []
        path = here
        owned.append(number)


def containers(path: str) -> list[str]:
    """Modules around a module, outermost first; a list of modules (a number follows) is none."""
    pieces = path.split(".")
    found = [""]
    for depth in range(1, len(pieces)):
        if not pieces[depth].isdigit() and pieces[depth - 1] not in _NOT_CALLED:
            found.append(".".join(pieces[:depth]))
    return found
