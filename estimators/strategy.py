"""How a run is split: engine x sharding x offload, by the names of the contract.

    name [:option[=value],...] [+optimizer@cpu|nvme] [+params@cpu|nvme]

Canonical order is name, options (sorted), optimizer, params. An option is a *knob*: every setting that changes what an
engine holds, with the engine's own default. Knobs stand in ``estimators.knobs``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from estimators.errors import IllegalCombination, InputError, UnknownName, short
from estimators.knobs import KNOBS, Knob, Value
from estimators.values import cached_property, dataclass, field

ENGINES = {
    "single": "torch", "ddp": "ddp", "zero0": "deepspeed", "zero1": "deepspeed", "zero2": "deepspeed", "zero3": "deepspeed",
    "fsdp-full-shard": "fsdp2", "fsdp-shard-grad-op": "fsdp2", "fsdp-hybrid-shard": "fsdp2",
    "fsdp1-full-shard": "fsdp1", "fsdp1-shard-grad-op": "fsdp1", "fsdp1-hybrid-shard": "fsdp1",
    "fsdp1-no-shard": "fsdp1",
}  # fmt: skip

ALIASES = {
    "zero2-offload": "zero2+optimizer@cpu",
    "zero3-offload": "zero3+optimizer@cpu+params@cpu",
    "zero-infinity": "zero3+optimizer@nvme+params@nvme",
    "fsdp-offload": "fsdp-full-shard+params@cpu",
    "fsdp": "fsdp-full-shard",
    "fsdp2": "fsdp-full-shard",
    "fsdp1": "fsdp1-full-shard",
    "hsdp": "fsdp-hybrid-shard",
    "zero-1": "zero1", "zero-2": "zero2", "zero-3": "zero3",
}  # fmt: skip

# What `estimate` answers without --strategy; `--all` adds the rest of what is legal.
DEFAULT_NAMES = (
    "ddp", "zero1", "zero2", "zero3",
    "fsdp-full-shard", "fsdp-shard-grad-op", "fsdp-hybrid-shard", "fsdp1-full-shard",
    "zero1+optimizer@cpu", "zero2+optimizer@cpu", "zero3+optimizer@cpu", "zero3+optimizer@cpu+params@cpu",
    "zero3+optimizer@nvme+params@nvme", "fsdp-full-shard+params@cpu",
)  # fmt: skip
OTHER_NAMES = (
    "zero0",
    "fsdp1-shard-grad-op", "fsdp1-hybrid-shard", "fsdp1-no-shard",
    "zero3+params@cpu", "zero3+params@nvme", "zero3+optimizer@nvme",
    "zero3+optimizer@cpu+params@nvme", "zero3+optimizer@nvme+params@cpu",
    "fsdp-shard-grad-op+params@cpu", "fsdp-hybrid-shard+params@cpu",
    "fsdp1-full-shard+params@cpu", "fsdp1-shard-grad-op+params@cpu", "fsdp1-hybrid-shard+params@cpu",
)  # fmt: skip
DEVICES = ("cpu", "nvme")


@dataclass(frozen=True)
class Strategy:
    """A legal strategy. ``options`` holds only what was asked for; defaults come with the stack and the engine."""

    base: str
    options: Mapping[str, Value] = field(default_factory=dict)
    optimizer: str | None = None  # where states and master weights live: None (the GPU), cpu, nvme
    params: str | None = None  # where parameter shards live between uses

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def engine(self) -> str:
        """``torch``, ``ddp``, ``fsdp2``, ``fsdp1`` or ``deepspeed``."""
        return ENGINES[self.base]

    @property
    def stage(self) -> int:
        """ZeRO stage, 0 for everything that is not DeepSpeed."""
        return int(self.base[4:]) if self.engine == "deepspeed" else 0

    @property
    def sharding(self) -> str:
        """FSDP: ``full-shard``, ``shard-grad-op``, ``hybrid-shard`` or ``no-shard``; else empty."""
        return self.base.split("-", 1)[1] if self.engine in ("fsdp1", "fsdp2") else ""

    @property
    def is_sharded(self) -> bool:
        return self.base not in ("single", "ddp", "zero0", "fsdp1-no-shard")

    @cached_property
    def name(self) -> str:
        """Canonical form; parsing it gives an equal strategy."""
        options = ",".join(k if v is True else f"{k}={_written(v)}" for k, v in sorted(self.options.items()))
        offload = (f"+optimizer@{self.optimizer}" if self.optimizer else "") + (
            f"+params@{self.params}" if self.params else ""
        )
        return self.base + (f":{options}" if options else "") + offload


def _written(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@lru_cache(maxsize=4096)
def parse_strategy(text: str) -> Strategy:
    """A name, alias or full spelling -> ``Strategy``.

    Raises ``UnknownName`` (with suggestions), ``InputError`` (malformed) or ``IllegalCombination`` (with the reason).
    """
    if len(text) > 400:
        raise InputError(f"strategy {short(text)} is too long; write it like zero3:hpz=8+optimizer@cpu")
    head, *suffixes = re.split(r"\+(?=[a-z]+@)", text.strip().lower())
    name, _, option_text = head.partition(":")
    name = name.replace("_", "-")
    if name in ALIASES:
        name, *implied = ALIASES[name].split("+")
        suffixes = [*implied, *suffixes]
    if name not in ENGINES:
        raise UnknownName("strategy", name, [*ENGINES, *ALIASES], "(dist-advisor strategies lists them)")
    places = _places(text, suffixes)
    options = _options(name, option_text)
    strategy = Strategy(name, options, places.get("optimizer"), places.get("params"))
    check_legal(strategy)
    return strategy


def _places(text: str, suffixes: list[str]) -> dict[str, str]:
    places: dict[str, str] = {}
    for suffix in suffixes:
        what, _, where = suffix.partition("@")
        if what not in ("optimizer", "params") or where not in DEVICES:
            raise InputError(
                f"strategy {short(text)}: {short(suffix)} is not an offload; write +optimizer@cpu, +optimizer@nvme, "
                "+params@cpu or +params@nvme"
            )
        if what in places and places[what] != where:
            raise InputError(f"strategy {short(text)}: {what} is given two places, {places[what]} and {where}")
        places[what] = where
    return places


def _options(name: str, text: str) -> dict[str, Value]:
    options: dict[str, Value] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        key, has_value, value = item.partition("=")
        knob = knob_of(name, key.strip())
        if knob.name in options:
            raise InputError(f"strategy {name}: option {knob.name} is given twice")
        options[knob.name] = knob.parse(value.strip() if has_value else "true")
    return options


def knobs_of(name: str) -> tuple[Knob, ...]:
    """The knobs that a strategy takes, in the order in which the engine's own documentation lists them."""
    return tuple(knob for knob in KNOBS if name in knob.strategies)


def knob_of(name: str, key: str) -> Knob:
    """The knob of that name or alias. Raises ``UnknownName``, or ``IllegalCombination`` when another engine has it."""
    key = key.replace("-", "_")
    for knob in KNOBS:
        if key in (knob.name, *knob.aliases) and name in knob.strategies:
            return knob
    elsewhere = [k for k in KNOBS if key in (k.name, *k.aliases)]
    if elsewhere:
        takers = ", ".join(dict.fromkeys(s for k in elsewhere for s in k.strategies))
        raise IllegalCombination(f"strategy {name} has no option {key}: it belongs to {takers}")
    known = [k.name for k in knobs_of(name)]
    raise UnknownName(f"option of {name}", key, known, f"(dist-advisor strategies {name} lists them)")


def check_legal(strategy: Strategy) -> None:
    """Raise ``IllegalCombination`` with the reason where an engine cannot do what the name says."""
    base, optimizer, params = strategy.base, strategy.optimizer, strategy.params
    if not optimizer and not params:
        if {"ratio", "pin_memory"} & set(strategy.options):
            raise IllegalCombination(f"{strategy.name}: ratio and pin_memory describe an offload; add +optimizer@cpu")
        return
    if base in ("single", "ddp", "fsdp1-no-shard"):
        raise IllegalCombination(
            f"{strategy.name}: {base} has no offload; use zero1+optimizer@cpu (states in host RAM), zero3-offload or "
            "fsdp-offload"
        )
    if strategy.engine in ("fsdp1", "fsdp2"):
        if optimizer:
            raise IllegalCombination(
                f"{strategy.name}: FSDP moves parameters, gradients and optimizer together; write {base}+params@cpu"
            )
        if params == "nvme":
            raise IllegalCombination(f"{strategy.name}: FSDP has no NVMe offload; use zero3+params@nvme")
        return
    if base == "zero0":
        raise IllegalCombination(f"{strategy.name}: offload needs ZeRO; use zero1+optimizer@cpu")
    if params and strategy.stage < 3:
        raise IllegalCombination(
            f"{strategy.name}: parameters can be offloaded at stage 3 only (DeepSpeed ignores offload_param at stage "
            f"{strategy.stage}); use zero3+params@{params}"
        )
    if optimizer == "nvme" and strategy.stage < 3:
        raise IllegalCombination(
            f"{strategy.name}: stages 1 and 2 keep an offloaded optimizer in host RAM; use {base}+optimizer@cpu or "
            "zero3+optimizer@nvme"
        )
    ratio = strategy.options.get("ratio", 1.0)
    if isinstance(ratio, float) and ratio < 1 and strategy.stage < 3:
        raise IllegalCombination(f"{strategy.name}: a partial offload (ratio {ratio}) is stage 3 only")
