"""Composition shared by the families that are more than one run of equal decoder blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby

from estimators.errors import InputError, NotModelled, short
from estimators.model.families.common import Config
from estimators.model.spec import Buffer, Parameter, Part
from estimators.values import replace

MAX_LAYERS = 10_000  # a pattern is read layer by layer; more layers than this is a slip

Parameters = tuple[Parameter, ...]
Buffers = tuple[Buffer, ...]


def under(prefix: str, parameters: Iterable[Parameter]) -> Parameters:
    """The same parameters, below ``prefix``."""
    return tuple(replace(p, name=f"{prefix}.{p.name}") for p in parameters)


def root(*groups: Parameters, buffers: Buffers = (), role: str = "decoder") -> Part:
    """Parameters outside the blocks; their names are whole."""
    return Part(tuple(p for group in groups for p in group), role=role, buffers=buffers)


def present(*parts: Part) -> tuple[Part, ...]:
    """Without the parts that an option left empty."""
    return tuple(part for part in parts if part.parameters or part.buffers)


def frequencies(name: str, dimension: int) -> Buffers:
    """The plain rotary frequencies of a vision tower: half of the dimension, in use and as they began."""
    half = (dimension + 1) // 2
    return Buffer(f"{name}.inv_freq", (half,)), Buffer(f"{name}.original_inv_freq", (half,))


def position_ids(name: str, count: int) -> Buffer:
    """``arange(count)``, kept whole by models with learned positions."""
    return Buffer(name, (1, count), "int64")


def layer_count(config: Config, key: str = "num_hidden_layers") -> int:
    count = config.integer(key)
    if count > MAX_LAYERS:
        raise InputError(f"{config.where}: {key} is {count}; give 1 to {MAX_LAYERS:,}")
    return count


def interleaved(kinds: Iterable[str], block: Callable[[str], Part]) -> Iterator[Part]:
    """One part for each run of equal kinds; ``block`` makes the part of a kind, once each."""
    made: dict[str, Part] = {}
    first = 0
    for kind, run in groupby(kinds):
        if kind not in made:
            made[kind] = block(kind)
        count = sum(1 for _ in run)
        yield replace(made[kind], first=first, count=count)
        first += count


def integers(config: Config, key: str, default: Sequence[int] = ()) -> tuple[int, ...]:
    """A list of whole numbers (layer indices), or its default when absent or null."""
    value = config.raw(key, default)
    if not isinstance(value, list | tuple) or not all(isinstance(v, int) and not isinstance(v, bool) for v in value):
        raise InputError(f"{config.where}: {key} is {short(value)}; give a list of whole numbers")
    return tuple(value)


def square(config: Config, key: str) -> tuple[int, int]:
    """A size given once or as [height, width]."""
    value = config.raw(key)
    if isinstance(value, list | tuple):
        pair = integers(config, key)
        if len(pair) != 2 or min(pair) < 1:
            raise InputError(f"{config.where}: {key} is {short(value)}; give one size or [height, width]")
        return pair[0], pair[1]
    size = config.integer(key)
    return size, size


def patch_count(config: Config) -> int:
    """Patches of one image: rows times columns, as a strided convolution counts them."""
    (height, width), (down, across) = square(config, "image_size"), square(config, "patch_size")
    if height < down or width < across:
        raise InputError(f"{config.where}: patch_size {down} is larger than image_size {height}; correct one of them")
    return (height // down) * (width // across)


def convolution(name: str, shape: tuple[int, ...], bias: bool = True) -> Parameters:
    """``nn.Conv*d``: weight [out, in / groups, *kernel] and perhaps bias [out]."""
    weight = Parameter(f"{name}.weight", shape, "conv")
    return (weight, Parameter(f"{name}.bias", shape[:1], "conv")) if bias else (weight,)


def labels(config: Config) -> int:
    """Width of a classifier: the labels that ``id2label`` names, or ``num_labels``, or two."""
    names = config.raw("id2label")
    if names is None:
        return config.integer("num_labels", 2)
    if not isinstance(names, dict) or not names:
        raise InputError(f"{config.where}: id2label is {short(names)}; give an object from index to name")
    return len(names)


def refuse(config: Config, *flags: str) -> None:
    """Options that add parameters no formula here has."""
    for flag in flags:
        if config.flag(flag):
            raise NotModelled(f"{config.where}: {flag} is true, which no formula here covers; its shapes can be read "
                              "from transformers instead")  # fmt: skip
