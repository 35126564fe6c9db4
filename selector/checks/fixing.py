"""``--fix``: a corrected copy beside the original, never over it, and the difference."""

from __future__ import annotations

import copy
import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from estimators.readers.safe import YAML_SUFFIXES, load
from estimators.values import dataclass
from selector.checks.editing import edited, json_tree, yaml_tree
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
        with open(made.path, "w", encoding="utf-8", newline="") as file:
            file.write(made.text)


def _corrected(file: Path, edits: Sequence[Edit]) -> Corrected:
    document = load(file)
    with open(file, encoding="utf-8-sig", newline="") as handle:  # line ends stay as they are
        before = handle.read()
    data = apply(document.data, edits)
    is_json = before.lstrip()[:1] in ("{", "[") and file.suffix.lower() not in YAML_SUFFIXES
    after = _json(before, edits, data) if is_json else _yaml(before, edits, data)
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


def _json(before: str, edits: Sequence[Edit], data: Mapping[str, Any]) -> str:
    """In the text of the original; written anew, in its indentation, where that does not give the same data."""
    text = edited(before, edits, json_tree)
    try:
        if json.loads(text) == data:
            return text
    except ValueError:
        pass
    found = _INDENT.search(before)
    return json.dumps(data, indent=found[1] if found else 2, ensure_ascii=False) + "\n"


def _yaml(before: str, edits: Sequence[Edit], data: Mapping[str, Any]) -> str:
    """The same for YAML."""
    import yaml

    try:
        text = edited(before, edits, yaml_tree)
        if yaml.safe_load(text) == yaml.safe_load(yaml.safe_dump(dict(data))):
            return text
    except yaml.YAMLError:
        pass
    return str(yaml.safe_dump(dict(data), sort_keys=False, allow_unicode=True))
