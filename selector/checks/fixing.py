"""``--fix``: a corrected copy beside the original, never over it, and the difference."""

from __future__ import annotations

import copy
import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from estimators.readers.safe import YAML_SUFFIXES, Document, load
from estimators.values import dataclass
from selector.checks.finding import REMOVE, Edit, Finding
from selector.checks.registry import INFO

_INDENT = re.compile(r"\{\s*?\n([ \t]+)\"")


@dataclass(frozen=True, slots=True)
class Corrected:
    """A corrected copy: where it would go, its text, and how it differs from the original."""

    original: Path
    path: Path
    text: str
    difference: str


def corrected(findings: Iterable[Finding]) -> tuple[Corrected, ...]:
    """Corrected copies of the JSON and YAML files that errors and warnings have edits for. Nothing is written."""
    wanted: dict[Path, list[Edit]] = {}
    for finding in findings:
        for edit in finding.edits if finding.severity != INFO else ():
            if edit.file.suffix.lower() != ".py":
                wanted.setdefault(edit.file, []).append(edit)
    made = (_corrected(file, edits) for file, edits in wanted.items())
    return tuple(copy for copy in made if copy.difference)


def write(copies: Sequence[Corrected]) -> None:
    for made in copies:
        made.path.write_text(made.text, encoding="utf-8")


def _corrected(file: Path, edits: Sequence[Edit]) -> Corrected:
    document = load(file)
    before = file.read_text(encoding="utf-8-sig")
    data = apply(document.data, edits)
    is_json = before.lstrip()[:1] in ("{", "[") and file.suffix.lower() not in YAML_SUFFIXES
    after = _json(before, data) if is_json else _yaml(before, document, edits, data)
    path = free_name(file)
    lines = difflib.unified_diff(before.splitlines(True), after.splitlines(True), file.name, path.name)
    return Corrected(file, path, after, "".join(lines))


def free_name(file: Path) -> Path:
    """``ds.json`` -> ``ds.fixed.json``, or with a number where that exists."""
    for number in range(1, 1000):
        tail = ".fixed" if number == 1 else f".fixed-{number}"
        path = file.with_name(f"{file.stem}{tail}{file.suffix}")
        if not path.exists():
            return path
    raise FileExistsError(str(path))


def apply(data: Mapping[str, Any], edits: Sequence[Edit]) -> dict[str, Any]:
    """The data with the edits made; of two edits of one key the first counts."""
    made: dict[str, Any] = copy.deepcopy(dict(data))
    done: set[str] = set()
    for edit in edits:
        if edit.path in done:
            continue
        done.add(edit.path)
        *parents, last = edit.path.split(".")
        inner = made
        for parent in parents:
            if not isinstance(inner.get(parent), dict):
                if edit.value is REMOVE:
                    break
                inner[parent] = {}
            inner = inner[parent]
        else:
            if edit.value is REMOVE:
                inner.pop(last, None)
            else:
                inner[last] = edit.value
    return made


def _json(before: str, data: Mapping[str, Any]) -> str:
    """In the indentation of the original."""
    found = _INDENT.search(before)
    indent: int | str = found[1] if found else 2
    return json.dumps(data, indent=indent, ensure_ascii=False) + "\n"


def _yaml(before: str, document: Document, edits: Sequence[Edit], data: Mapping[str, Any]) -> str:
    """Line by line, so that comments stay; written anew where that does not give the same data."""
    import yaml

    lines = before.splitlines()
    gone: set[int] = set()
    added: list[str] = []
    for edit in {e.path: e for e in reversed(edits)}.values():
        number = document.lines.get(edit.path)
        if number is not None and edit.value is REMOVE:
            gone.update(_extent(lines, number - 1))
        elif number is not None:
            lines[number - 1] = _with_value(lines[number - 1], edit.value)
            gone.update(_extent(lines, number - 1)[1:])
        elif edit.value is not REMOVE and "." not in edit.path:
            added.append(f"{edit.path}: {_scalar(edit.value)}")
        elif edit.value is not REMOVE:
            _insert(lines, document, edit)
    text = "\n".join([line for i, line in enumerate(lines) if i not in gone] + added) + "\n"
    try:
        if yaml.safe_load(text) == yaml.safe_load(yaml.safe_dump(dict(data))):
            return text
    except yaml.YAMLError:
        pass
    return str(yaml.safe_dump(dict(data), sort_keys=False, allow_unicode=True))


def _extent(lines: Sequence[str], first: int) -> range:
    """The lines of a key: its own, and what is indented below it."""
    depth = len(lines[first]) - len(lines[first].lstrip())
    last = first + 1
    while last < len(lines) and lines[last].strip() and len(lines[last]) - len(lines[last].lstrip()) > depth:
        last += 1
    return range(first, last)


def _with_value(line: str, value: Any) -> str:
    key, _, rest = line.partition(":")
    comment = re.search(r"\s#.*$", rest)
    return f"{key}: {_scalar(value)}{' ' + comment[0].strip() if comment else ''}"


def _insert(lines: list[str], document: Document, edit: Edit) -> None:
    """A new key goes to the end of the first line of a sibling, so that no line number changes."""
    parent, _, key = edit.path.rpartition(".")
    sibling = next((n for p, n in document.lines.items() if p.rpartition(".")[0] == parent), None)
    if sibling is not None:
        indent = lines[sibling - 1][: len(lines[sibling - 1]) - len(lines[sibling - 1].lstrip())]
        lines[sibling - 1] = f"{indent}{key}: {_scalar(edit.value)}\n{lines[sibling - 1]}"


def _scalar(value: Any) -> str:
    import yaml

    return str(yaml.safe_dump(value, default_flow_style=True, width=10**6)).strip().removesuffix("...").strip()
