"""``train.py`` as far as its literal arguments go: parsed by ``ast``, never executed."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from estimators.errors import InputError
from estimators.readers.safe import Document
from estimators.values import dataclass
from selector.checks.block import Block
from selector.checks.finding import Hit
from selector.syntax import parsed

MAX_BYTES = 2**20
ARGUMENT_CLASSES = (
    "TrainingArguments",
    "Seq2SeqTrainingArguments",
    "SFTConfig",
    "DPOConfig",
    "GRPOConfig",
    "PPOConfig",
    "RewardConfig",
    "KTOConfig",
    "ORPOConfig",
)
_DEEPSPEED_MARKS = {"zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu"}


class _Unknown:
    """A value that only running the script would tell."""

    def __repr__(self) -> str:
        return "?"


UNKNOWN = _Unknown()


@dataclass(frozen=True, slots=True)
class Call:
    """A call with its literal arguments; what is not literal is ``UNKNOWN``, names stand as their text."""

    name: str  # the last part: from_pretrained
    path: str  # AutoModelForCausalLM.from_pretrained
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    line: int
    lines: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Script:
    """What a script says: its calls in the order of their lines, its imports, and its dictionaries."""

    path: Path | None = None
    calls: tuple[Call, ...] = ()
    imports: frozenset[str] = frozenset()
    dicts: tuple[Block, ...] = ()

    def __bool__(self) -> bool:
        return self.path is not None

    def named(self, *names: str) -> Iterator[Call]:
        return (call for call in self.calls if call.name in names)

    def hit(self, call: Call, key: str, message: str, fix: str = "", severity: str = "") -> Hit:
        where = f"{call.name}.{key}" if key else call.name
        return Hit(self.path, where, call.lines.get(key, call.line), message, fix, (), severity)

    def arguments(self) -> Block:
        """The keyword arguments of the first ``TrainingArguments``, as a block; empty when there is none."""
        assert self.path is not None
        for call in self.named(*ARGUMENT_CLASSES):
            literal = {k: v for k, v in call.kwargs.items() if v is not UNKNOWN}
            return Block(Document(self.path, literal, call.lines), literal)
        return Block()

    def deepspeed(self) -> Block:
        """The first dictionary that looks like a DeepSpeed configuration."""
        return next((block for block in self.dicts if _DEEPSPEED_MARKS & block.data.keys()), Block())


def read_script(path: Path) -> Script:
    """Parse a Python file. Raises ``InputError``."""
    try:
        with open(path, "rb") as handle:
            raw = handle.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path.name[:200]}: {getattr(error, 'strerror', None) or error}") from None
    if len(raw) > MAX_BYTES:
        raise InputError(f"{path.name} is larger than {MAX_BYTES // 2**20} MiB; that is not a training script")
    try:
        tree = parsed(raw)
    except SyntaxError as error:
        raise InputError(f"{path.name}, line {error.lineno or 1}: not valid Python: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError):
        raise InputError(f"{path.name} is not Python text that can be parsed") from None
    return _collect(path, tree)


def _collect(path: Path, tree: ast.Module) -> Script:
    calls: list[Call] = []
    imports: set[str] = set()
    dicts: list[Block] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            made = _call(node)
            if made is not None:
                calls.append(made)
        elif isinstance(node, ast.Import):
            imports.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            imports.add(node.module.partition(".")[0])
        elif isinstance(node, ast.Dict) and any(_key(k) in _DEEPSPEED_MARKS for k in node.keys):
            lines: dict[str, int] = {}
            data = _mapping(node, "", lines, 0)
            dicts.append(Block(Document(path, data, lines), data))
    calls.sort(key=lambda call: call.line)
    return Script(path, tuple(calls), frozenset(imports), tuple(dicts))


def _call(node: ast.Call) -> Call | None:
    path = _dotted(node.func)
    if not path:
        return None
    kwargs = {k.arg: _literal(k.value, 0) for k in node.keywords if k.arg}
    lines = {k.arg: k.value.lineno for k in node.keywords if k.arg}
    args = tuple(_literal(argument, 0) for argument in node.args)
    return Call(path.rpartition(".")[2], path, args, kwargs, node.lineno, lines)


def _dotted(node: ast.expr) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        parts.append(node.id)
    return ".".join(reversed(parts))


def _literal(node: ast.expr, depth: int) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        value = node.operand.value
        return -value if isinstance(value, int | float) else UNKNOWN
    if depth > 16:
        return UNKNOWN
    if isinstance(node, ast.List | ast.Tuple):
        return [_literal(item, depth + 1) for item in node.elts]
    if isinstance(node, ast.Dict):
        return _mapping(node, "", {}, depth + 1)
    if isinstance(node, ast.Attribute):
        return _dotted(node) or UNKNOWN  # torch.bfloat16
    return UNKNOWN


def _key(node: ast.expr | None) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _mapping(node: ast.Dict, path: str, lines: dict[str, int], depth: int) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key_node, value in zip(node.keys, node.values, strict=True):
        key = _key(key_node)
        if not key or key_node is None:
            continue
        lines[path + key] = key_node.lineno
        inside = isinstance(value, ast.Dict) and depth < 16
        found = _mapping(value, f"{path}{key}.", lines, depth + 1) if inside else _literal(value, depth + 1)  # type: ignore[arg-type]
        if found is not UNKNOWN:
            made[key] = found
    return made
