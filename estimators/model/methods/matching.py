"""Which modules a name given by a user means, and cutting a run of equal blocks where it means only some of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import TypeVar

from estimators.errors import UnknownName
from estimators.model.spec import ModelSpec, Part
from estimators.values import replace

Choice = TypeVar("Choice", bound=Hashable)


def module_of(parameter_name: str) -> str:
    """``self_attn.q_proj`` of ``self_attn.q_proj.weight``; a bare parameter belongs to the module around it."""
    return parameter_name.rpartition(".")[0]


def runs(part: Part, names: Sequence[str], choose: Callable[[str], Choice]) -> Iterator[tuple[Part, Choice]]:
    """``part`` cut into runs over which ``choose(stem)`` is the same; ``stem`` is a piece's full module path.

    Only names with a digit can tell one piece from the next, so without one the part stays whole and is looked at
    once, whatever its depth.
    """
    if part.count == 1 or not any(ch.isdigit() for name in names for ch in name):
        yield part, choose(part.prefix.format(part.first))
        return
    choices = [choose(part.prefix.format(part.first + i)) for i in range(part.count)]
    first = part.first
    for choice, group in groupby(choices):
        count = sum(1 for _ in group)
        yield replace(part, first=first, count=count), choice
        first += count


def full_name(stem: str, name: str) -> str:
    return f"{stem}.{name}" if stem and name else stem or name


def ends_in(path: str, targets: Iterable[str]) -> bool:
    """peft's rule for target_modules: the whole path, or its end at a dot."""
    return any(path == target or path.endswith(f".{target}") for target in targets)


def require_known(what: str, names: Iterable[str], used: Iterable[str], model: ModelSpec) -> None:
    """Raise ``UnknownName`` for the first name that matched nothing."""
    found = set(used)
    for name in names:
        if name not in found:
            known = {m.rpartition(".")[2] for part in model.parts for p in part.parameters
                     for m in (module_of(p.name), module_of(module_of(p.name))) if m}  # fmt: skip
            raise UnknownName(what, name, sorted(known), f"(no module of {model.name or model.class_name} matches it)")
