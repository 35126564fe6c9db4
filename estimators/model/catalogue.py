"""The catalogue: names of published models, and the config and source behind each. A spec is built when asked for.

``data/*.json`` hold the entries, one a line. Every config comes from something that ships or states it (``source``);
``published_params`` is a total that somebody else counted, and a test demands that the spec has exactly that many.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from estimators.model import families
from estimators.model.spec import ModelSpec
from estimators.values import dataclass, replace

DATA = os.path.join(os.path.dirname(__file__), "data")
INDEX = os.path.join(os.path.dirname(__file__), "model_index.json")
# Words of a name that say how the weights were trained or stored; the architecture is the same without them.
DECORATION = frozenset({"hf", "instruct", "chat", "base", "it", "pt", "sft", "dpo", "meta"})
# Organisations that re-upload others' checkpoints under their own name and leave the architecture alone.
MIRRORS = frozenset({"unsloth", "nousresearch", "huggyllama", "modelscope", "llm-research", "mlx-community"})
_SEPARATOR = re.compile(r"[\s_-]+|(?<=[a-z])(?=\d)")


@dataclass(frozen=True, eq=False, slots=True)
class Entry:
    """One architecture at one size. ``group`` is the file that it stands in."""

    name: str
    aliases: tuple[str, ...]
    hf_id: str | None
    config: Mapping[str, Any]
    source: str
    published_params: int | None
    published_source: str | None
    nominal_billions: float | None
    group: str

    @property
    def names(self) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        """Everything that means this entry, strongest first: name, aliases, id."""
        return (self.name,), self.aliases, (self.hf_id,) if self.hf_id else ()

    @property
    def owners(self) -> frozenset[str]:
        """Organisations that published it, in lower case."""
        ids = (*self.aliases, self.hf_id or "")
        return frozenset(known.partition("/")[0].lower() for known in ids if "/" in known)


@cache
def _file(group: str) -> tuple[Entry, ...]:
    """The entries of one file."""
    with open(os.path.join(DATA, f"{group}.json"), encoding="utf-8") as stream:
        return tuple(Entry(**{**row, "aliases": tuple(row["aliases"]), "group": group}) for row in json.load(stream))


@cache
def entries() -> tuple[Entry, ...]:
    """Every entry, by file and in the order of the files."""
    groups = [file[:-5] for file in sorted(os.listdir(DATA)) if file.endswith(".json")]
    return tuple(entry for group in groups for entry in _file(group))


def normalise(name: str) -> str:
    """Case, separators and the hyphen before a number do not matter; dots do.

    >>> normalise("meta_Llama3.1 8B"), normalise("llama-3-8b")
    ('meta-llama-3.1-8b', 'llama-3-8b')
    """
    return _SEPARATOR.sub("-", name.lower()).strip("-")


def undecorated(key: str) -> str:
    """A normalised name without the words that leave the architecture alone.

    >>> undecorated("llama-3.1-8b-instruct")
    'llama-3.1-8b'
    """
    return "-".join(word for word in key.split("-") if word not in DECORATION)


@cache
def _index() -> Mapping[str, str]:
    """What ``index`` says, written down: name -> file and number of the entry in it. One answer needs one file."""
    with open(INDEX, encoding="utf-8") as stream:
        found: dict[str, str] = json.load(stream)
    return found


def named(key: str) -> Entry | None:
    """The entry of a key of ``index``."""
    group, _, number = _index().get(key, "").partition(" ")
    return _file(group)[int(number)] if group else None


def index() -> Mapping[str, Entry]:
    """Normalised name -> entry: ids with their organisation, and every name without one.

    ``scripts/model-index`` writes it to ``model_index.json``. A name wins over an alias, an alias over the last part of
    somebody's id; a dotted name is also found with hyphens (``qwen2-5-7b``).
    """
    full: dict[str, Entry] = {}
    bare: dict[str, Entry] = {}
    for rank in range(3):
        for entry in entries():
            for name in entry.names[rank]:
                organisation, _, rest = name.rpartition("/")
                key = normalise(rest)
                bare.setdefault(key, entry)
                if organisation:
                    full.setdefault(f"{organisation.lower()}/{key}", entry)
    dashed = {key.replace(".", "-"): entry for key, entry in bare.items()}
    return {**dashed, **bare, **full}


def written() -> dict[str, str]:
    """What ``model_index.json`` says: each key with the file of its entry and the entry's number there."""
    places = {id(entry): f"{entry.group} {_file(entry.group).index(entry)}" for entry in entries()}
    return {key: places[id(entry)] for key, entry in sorted(index().items())}


def find(name: str) -> Entry | None:
    """The entry that ``name`` means, or None.

    With an organisation (``meta-llama/Llama-3.1-8B``) the entry must be published by it, or it must be a mirror:
    somebody else's ``org/llama-8b`` may be anything.
    """
    organisation, slash, rest = name.strip().rpartition("/")
    if "/" in organisation or "\\" in name:
        return None
    owner, key = organisation.lower() + slash, normalise(rest)
    for wanted in (key, undecorated(key)):
        entry = named(owner + wanted)
        if entry is not None:
            return entry
        entry = named(wanted)
        if entry is not None and (organisation.lower() in MIRRORS or organisation.lower() in entry.owners):
            return entry
    return None


@cache
def spec_of(entry: Entry) -> ModelSpec:
    """The spec of an entry: the same object each time."""
    spec = families.build(entry.config, where=f"catalogue entry {entry.name}")
    return replace(spec, name=entry.name, source=entry.source, nominal_billions=entry.nominal_billions)


def names() -> list[str]:
    """What a typing mistake is compared with: names, ids and aliases."""
    return [name for entry in entries() for rank in entry.names for name in rank]


def models() -> list[dict[str, Any]]:
    """The rows of ``dist-advisor models``; every entry has a formula, so that none needs transformers."""
    return [_row(entry) for entry in entries()]


def _row(entry: Entry) -> dict[str, Any]:
    spec = spec_of(entry)
    return {
        "name": entry.name, "aliases": list(entry.aliases), "hf_id": entry.hf_id, "family": spec.family,
        "params": spec.num_params, "shapes": spec.shapes, "nominal_billions": entry.nominal_billions,
        "source": entry.source,
    }  # fmt: skip
