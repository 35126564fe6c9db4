"""A JSON or YAML file that nobody vouches for -> plain dicts, lists, text and numbers, with the line of each key.

    limits      4 MiB of UTF-8, 32 levels, 50,000 values (aliases of YAML count each time they are expanded)
    refused     duplicate keys, NaN and infinities, keys that are not text, tags that are not plain data,
                several documents, NUL bytes, anything but a regular file

Every refusal is one ``InputError`` that names the file and, where there is one, the line.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from estimators.errors import InputError, short
from estimators.readers.positions import Duplicate, key_lines
from estimators.values import dataclass

MAX_BYTES = 4 * 2**20
MAX_DEPTH = 32
MAX_VALUES = 50_000
YAML_SUFFIXES = (".yaml", ".yml")
# deepspeed/runtime/config.py reads its file with hjson; transformers and accelerate use json.
COMMENTS = " (JSON has no comments: deepspeed.initialize takes them, the Trainer and accelerate do not)"


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed file: ``data`` is its top-level mapping, ``lines`` the line (from 1) of each dotted key path."""

    path: Path
    data: Mapping[str, Any]
    lines: Mapping[str, int]

    @property
    def name(self) -> str:
        return self.path.name


def load(path: str | os.PathLike[str]) -> Document:
    """Read and parse a file. Raises ``InputError``; never anything else."""
    file = Path(path)
    text = _text(file)
    data, lines = _yaml(file, text) if _is_yaml(file, text) else _json(file, text)
    if not isinstance(data, dict):
        found = {"NoneType": "empty", "list": "a list", "str": "a line of text"}.get(type(data).__name__, "one value")
        raise InputError(f"{file.name} is {found}; a configuration is a mapping of keys to values")
    return Document(file, data, lines)


def _text(file: Path) -> str:
    try:
        # Not a device or a pipe: those never end, and their size says 0.
        if not stat.S_ISREG(os.stat(file).st_mode):
            raise InputError(f"{file} is not a file; name a JSON or YAML file")
        with open(file, "rb") as handle:
            raw = handle.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL inside the name
        reason = getattr(error, "strerror", None) or "the name cannot be used"
        raise InputError(f"cannot read {short(str(file), 200)}: {reason.lower()}") from None
    if len(raw) > MAX_BYTES:
        raise InputError(f"{file.name} is larger than {MAX_BYTES // 2**20} MiB; that is not a configuration")
    if not raw.strip():
        raise InputError(f"{file.name} is empty")
    if b"\0" in raw:
        raise InputError(f"{file.name} holds NUL bytes (at byte {raw.index(0)}); save it as UTF-8 text")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InputError(f"{file.name}, line {line}: not UTF-8 text (byte {error.start}); save it as UTF-8") from None


def _one_line(text: str) -> str:
    """A user's text inside a message: printable, and cut."""
    return "".join(c if c.isprintable() else "?" for c in text)[:80]


def _is_yaml(file: Path, text: str) -> bool:
    """By the suffix where it says so, else by the first character."""
    suffix = file.suffix.lower()
    return suffix in YAML_SUFFIXES or (suffix != ".json" and text.lstrip()[:1] not in ("{", "["))


# ---------------------------------------------------------------------------------------------------------------- JSON


def _json(file: Path, text: str) -> tuple[Any, Mapping[str, int]]:
    try:
        data = json.loads(text, parse_constant=_no_constant, parse_float=_finite)
        _measure(data)
        return data, key_lines(text)
    except json.JSONDecodeError as error:
        found = text[error.pos : error.pos + 1]
        hint = COMMENTS if found in ("#", "/") else ""
        raise InputError(
            f"{file.name}, line {error.lineno}, column {error.colno}: not valid JSON: {error.msg.lower()}{hint}"
        ) from None
    except Duplicate as error:
        raise InputError(f"{file.name}, line {error.line}: {_one_line(error.where)} is given twice; keep one") from None
    except RecursionError:
        raise InputError(f"{file.name} is nested deeper than {MAX_DEPTH} levels") from None
    except InputError as error:
        raise InputError(f"{file.name} {error}") from None
    except ValueError:  # an integer of more than 4300 digits
        raise InputError(f"{file.name} holds a number too long to read") from None


def _no_constant(word: str) -> float:
    raise InputError(f"holds {word}; a configuration needs finite numbers")


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise InputError(f"holds {short(text)}, which is too large to read")
    return number


def _measure(data: Any) -> None:
    """Refuse what is too deep or too large, without recursion."""
    level, values, depth = [data], 0, 0
    while level:
        values, depth = values + len(level), depth + 1
        if depth > MAX_DEPTH:
            raise InputError(f"is nested deeper than {MAX_DEPTH} levels")
        if values > MAX_VALUES:
            raise InputError(f"holds more than {MAX_VALUES:,} values; that is not a configuration")
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
        level = below


# ---------------------------------------------------------------------------------------------------------------- YAML


def _yaml(file: Path, text: str) -> tuple[Any, Mapping[str, int]]:
    from estimators.readers.yaml_nodes import YamlProblem, plain  # PyYAML is needed only here

    try:
        return plain(text, MAX_DEPTH, MAX_VALUES)
    except YamlProblem as problem:
        line = f", line {problem.line}" if problem.line else ""
        raise InputError(f"{file.name}{line}: {problem}") from None
