"""The FSDP settings of accelerate (``fsdp_config`` with prefixes), of the Trainer and of Axolotl as one thing."""

from __future__ import annotations

from typing import Any

from estimators.readers.fsdp import SHARDING, STATE_DICTS
from estimators.values import dataclass, field
from selector.checks.block import Block
from selector.checks.finding import Edit, Hit


@dataclass(frozen=True, slots=True)
class Fsdp:
    """``version`` is 1 or 2; ``stated`` whether the file says which. Keys are given without ``fsdp_``."""

    block: Block = field(default_factory=Block)
    version: int = 0
    stated: bool = False
    owner: str = ""  # accelerate, trainer, axolotl
    options: tuple[str, ...] = ()  # of the Trainer's ``fsdp``

    def __bool__(self) -> bool:
        return self.version > 0

    def key(self, name: str) -> str:
        """The spelling in the file."""
        return next(
            (k for k in (f"fsdp_{name}", name) if k in self.block.data), f"fsdp_{name}" if self.is_launcher else name
        )

    @property
    def is_launcher(self) -> bool:
        return self.owner == "accelerate"

    def get(self, name: str) -> Any:
        return self.block.get(self.key(name))

    def flag(self, name: str) -> bool | None:
        return self.block.flag(self.key(name))

    def text(self, name: str) -> str:
        """Text or a number as text, in upper case."""
        value = self.get(name)
        return str(value).strip().upper() if isinstance(value, str | int) and not isinstance(value, bool) else ""

    def hit(self, name: str, message: str, *edits: Edit, fix: str = "", severity: str = "") -> Hit:
        return self.block.hit(self.key(name), message, *edits, fix=fix, severity=severity)

    def put(self, name: str, value: Any) -> Edit:
        return self.block.put(self.key(name), value)

    @property
    def sharding(self) -> str:
        """Name of the strategy of version 1; FULL_SHARD where nothing says."""
        value = self.text("sharding_strategy")
        if value.isdecimal() and len(value) < 3 and 1 <= int(value) <= len(SHARDING):
            return SHARDING[int(value) - 1]
        asked = next((o.upper() for o in self.options if o.upper() in SHARDING), "FULL_SHARD")
        return value if value in SHARDING else asked

    @property
    def state_dict(self) -> str:
        value = self.text("state_dict_type")
        if value.isdecimal() and len(value) < 3 and 1 <= int(value) <= len(STATE_DICTS):
            return STATE_DICTS[int(value) - 1]
        default = "SHARDED_STATE_DICT" if self.version == 2 and self.is_launcher else "FULL_STATE_DICT"
        return value or default

    @property
    def wrapping(self) -> str:
        """TRANSFORMER_BASED_WRAP, SIZE_BASED_WRAP or NO_WRAP."""
        value = self.text("auto_wrap_policy")
        if value:
            return value
        return "NO_WRAP" if self.is_launcher else "TRANSFORMER_BASED_WRAP"

    @property
    def classes(self) -> tuple[str, ...]:
        value = self.get("transformer_layer_cls_to_wrap")
        items = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else []
        return tuple(str(item).strip() for item in items if str(item).strip())

    @property
    def offloads(self) -> bool:
        return bool(self.flag("offload_params") or self.flag("cpu_offload") or "offload" in self.options)


def fsdp_of(accel: Block, args: Block) -> Fsdp:
    """The settings of the file that turns FSDP on; nothing when none does."""
    if accel.word("distributed_type") == "fsdp":
        block = accel.sub("fsdp_config")
        block = block if block else Block(accel.document, {}, "fsdp_config.")
        return _made(block, "accelerate", 1, None)
    axolotl = "base_model" in args and ("fsdp_config" in args or "fsdp" in args)
    if not args.get("fsdp") and not axolotl:
        return Fsdp()
    block = args.sub("fsdp_config")
    block = block if block else Block(args.document, {}, "fsdp_config.")
    owner, default = ("axolotl", 1) if axolotl else ("trainer", 2)
    return _made(block, owner, default, args)


def _made(block: Block, owner: str, default: int, args: Block | None) -> Fsdp:
    value = args.get("fsdp") if args else None
    words = value.split() if isinstance(value, str) else value if isinstance(value, list) else []
    options = tuple(str(word).lower() for word in words)
    stated = block.whole("fsdp_version") or block.whole("version") or (args.whole("fsdp_version") if args else None)
    version = stated if stated in (1, 2) else default
    return Fsdp(block, version, stated is not None, owner, options)
