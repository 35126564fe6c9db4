"""Files -> setups: each is recognised by its content, and those of one run are put side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from estimators.errors import short
from estimators.readers import recognise
from estimators.readers.follow import named_file
from estimators.readers.safe import Document, load
from estimators.values import dataclass, field
from selector.checks.block import Block
from selector.checks.finding import Hit
from selector.checks.script import Script, read_script
from selector.checks.setup import SHIPPED


@dataclass(frozen=True, slots=True)
class Group:
    """The files of one run, and what was found while they were read. ``missing`` are keys that name no file."""

    ds: Block = field(default_factory=Block)
    accel: Block = field(default_factory=Block)
    args: Block = field(default_factory=Block)
    script: Script = field(default_factory=Script)
    missing: tuple[str, ...] = ()
    hits: tuple[Hit, ...] = ()


Loaded = tuple[str, Block, Script]


def groups(paths: Iterable[str | Path]) -> Iterator[Group]:
    """The files as runs: one run where accelerate's file and the arguments stand once, else each file with the file it
    names. Of several DeepSpeed files the one that the others name belongs to their run; the rest stand alone, and so do
    several scripts.

    Raises ``InputError`` for a file that cannot be read or recognised.
    """
    loaded = [_load(Path(path)) for path in dict.fromkeys(str(path) for path in paths)]
    scripts = [item for item in loaded if item[0] == "script"]
    if len(scripts) > 1:
        loaded = [item for item in loaded if item[0] != "script"]
        yield from (_group({kind: (block, script)}) for kind, block, script in scripts)
    kinds = [kind for kind, _, _ in loaded if kind != "deepspeed"]
    if len(set(kinds)) == len(kinds):
        yield from _together(loaded)
        return
    alone = [_group({kind: (block, script)}) for kind, block, script in loaded]
    named = {group.ds.document.path.resolve() for group in alone if group.accel or group.args if group.ds}
    for (kind, block, _), group in zip(loaded, alone, strict=True):
        if kind != "deepspeed" or block.document.path.resolve() not in named:
            yield group


def _together(loaded: Sequence[Loaded]) -> Iterator[Group]:
    """One run, and the DeepSpeed files that are not its own."""
    jsons = [item for item in loaded if item[0] == "deepspeed"]
    rest = {kind: (block, script) for kind, block, script in loaded if kind != "deepspeed"}
    if not rest:
        yield from (_group({kind: (block, script)}) for kind, block, script in jsons)
        return
    alone = _group(rest)
    own = alone.ds.document.path.resolve() if alone.ds else None
    others = [item for item in jsons if item[1].document.path.resolve() != own]
    if alone.ds or len(jsons) != 1:
        yield alone
    else:  # nothing names it, or by a path that is not here: it is the run's
        yield _group({**rest, "deepspeed": jsons[0][1:]})
        others = []
    yield from (_group({kind: (block, script)}) for kind, block, script in others)


def _load(path: Path) -> Loaded:
    if path.suffix.lower() == ".py":
        return "script", Block(), read_script(path)
    document = load(path)
    return recognise(document), Block(document, document.data), Script()


def _group(found: Mapping[str, tuple[Block, Script]]) -> Group:
    script = found["script"][1] if "script" in found else Script()
    accel = found["accelerate"][0] if "accelerate" in found else Block()
    args = found["training_arguments"][0] if "training_arguments" in found else Block()
    if not args and script:
        args = script.arguments()
    missing: list[str] = []
    hits: list[Hit] = []
    ds = found["deepspeed"][0] if "deepspeed" in found else Block()
    for block, key in ((accel.sub("deepspeed_config"), "deepspeed_config_file"), (args, "deepspeed")):
        value = block.get(key)
        if isinstance(value, Mapping):
            ds = ds or block.sub(key)
        elif isinstance(value, str) and value and not ds and value not in SHIPPED:
            ds = _named(block, key, value, missing, hits)
    ds = ds or (script.deepspeed() if script else Block())
    return Group(ds, accel, args, script, tuple(missing), tuple(hits))


def _named(block: Block, key: str, name: str, missing: list[str], hits: list[Hit]) -> Block:
    """The JSON that a key names: beside the file, or in the working folder."""
    path = named_file(block.document, name)
    if path is not None:
        document = load(path)
        return Block(document, document.data)
    missing.append(block.path + key)
    said = (
        f"no file {short(name, 120)} beside {block.document.name} or in the working folder: what it says is not checked"
    )
    hits.append(block.hit(key, said, fix="correct the path, or name the file beside this one"))
    return Block()


def without(document: Document, paths: Iterable[str]) -> Document:
    """The document as if the keys at dotted ``paths`` were not there."""
    data = dict(document.data)
    for path in paths:
        *parents, last = path.split(".")
        inner = data
        for parent in parents:
            inner[parent] = dict(inner[parent])
            inner = inner[parent]
        inner.pop(last, None)
    return Document(document.path, data, document.lines)
