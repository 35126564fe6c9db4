"""Templates -> one script: chosen functions, the constants and imports that they use, and nothing else.

A template is a Python file that can be read, linted and imported by itself. In it

    statement  # when: NAME      stays where NAME is among the flags
    statement  # unless: NAME    stays where it is not

and what a template imports from its neighbours is left out of the script: there everything stands in one file.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from selector.syntax import parsed

TEMPLATES = Path(__file__).with_name("templates")
NEIGHBOURS = "selector.configs.templates"
_CONDITION = re.compile(r"  # (when|unless): ([a-z0-9_]+)$")


def compose(
    docstring: str, names: Iterable[str], flags: Collection[str], values: Mapping[str, Any], written: str = ""
) -> str:
    """The text of a script made of the named templates, in that order.

    ``values`` holds a value for every constant of ``templates/settings.py`` that a chosen template uses. ``written`` is
    a function that no template has, with its imports before it.
    """
    bodies: list[str] = []
    imports: list[ast.stmt] = []
    for text in (written, *(_chosen(_read(name), flags) for name in names)):
        found, body = _parts(text)
        imports += found
        bodies.append(body)
    code = "\n\n\n".join(body for body in (*bodies[1:-1], bodies[0], bodies[-1]) if body)
    while (shorter := _without_unused(code)) != code:
        code = shorter
    words = _names(code)
    constants = "\n".join(_constant(name, comment, values[name]) for name, comment in _settings() if name in words)
    head = "\n\n".join(part for part in (f'"""{docstring}"""', _imports(imports, words), constants) if part)
    return f'{head}\n\n\n{code}\n\n\nif __name__ == "__main__":\n    main()\n'


@cache
def _read(name: str) -> str:
    return (TEMPLATES / f"{name}.py").read_text(encoding="utf-8")


def _chosen(text: str, flags: Collection[str]) -> str:
    """Lines whose condition holds, without the condition."""
    kept = []
    for line in text.splitlines():
        stays = True
        while match := _CONDITION.search(line):
            stays = stays and (match[2] in flags) == (match[1] == "when")
            line = line[: match.start()]
        if stays:
            kept.append(re.sub(r"  # noqa: [A-Z0-9]+( -)?", lambda found: "  #" if found[1] else "", line))
    return "\n".join(kept) + "\n"


def _parts(text: str) -> tuple[list[ast.stmt], str]:
    """Imports of other packages, and everything behind the imports."""
    tree = parsed(text)
    if not tree.body:
        return [], ""
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    last = max((node.end_lineno or 0 for node in (*tree.body[: _has_docstring(tree)], *imports)), default=0)
    foreign = [n for n in imports if not (isinstance(n, ast.ImportFrom) and (n.module or "").startswith(NEIGHBOURS))]
    return list(foreign), "\n".join(text.splitlines()[last:]).strip("\n")


def _has_docstring(tree: ast.Module) -> bool:
    return ast.get_docstring(tree) is not None


def _without_unused(code: str) -> str:
    """Top-level functions that nothing mentions are dropped (a template serves several flags)."""
    lines, names = code.splitlines(), _names(code)
    for node in parsed(code).body:
        if isinstance(node, ast.FunctionDef) and node.name not in {*names, "main"}:
            rest = [*lines[: node.lineno - 1], *lines[node.end_lineno :]]
            return re.sub(r"\n{4,}", "\n\n\n", "\n".join(rest)).strip("\n")
    return code


def _names(code: str) -> set[str]:
    """Names that code reads; not those of its comments, strings and attributes."""
    return {node.id for node in ast.walk(parsed(code)) if isinstance(node, ast.Name)}


def _imports(nodes: list[ast.stmt], words: set[str]) -> str:
    """One block: standard library, then the rest; names that are not used are left out."""
    plain: set[str] = set()
    members: dict[str, set[str]] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            plain |= {ast.unparse(ast.Import([a])) for a in node.names if (a.asname or a.name.split(".")[0]) in words}
        elif isinstance(node, ast.ImportFrom):
            members.setdefault(str(node.module), set()).update(a.name for a in node.names if a.name in words)
    lines = plain | {_from(module, sorted(names)) for module, names in members.items() if names}
    standard = sorted(line for line in lines if _is_standard(line))
    others = sorted((line for line in lines if not _is_standard(line)), key=lambda s: (s.startswith("from"), s.lower()))
    return "\n\n".join("\n".join(group) for group in (standard, others) if group)


def _from(module: str, names: list[str]) -> str:
    line = f"from {module} import {', '.join(names)}"
    if len(line) <= 120:
        return line
    return f"from {module} import (\n" + "".join(f"    {name},\n" for name in names) + ")"


def _is_standard(line: str) -> bool:
    return line.split()[1].split(".")[0] in sys.stdlib_module_names


@cache
def _settings() -> tuple[tuple[str, str], ...]:
    """Constants in the order of ``templates/settings.py``, each with the comment beside it there."""
    rows = re.findall(r"^([A-Z][A-Z0-9_]*) = .*?(?:  # (.*))?$", _read("settings"), re.MULTILINE)
    return tuple((name, comment) for name, comment in rows)


def _constant(name: str, comment: str, value: Any) -> str:
    text = _literal(value)
    if isinstance(value, tuple) and len(text) > 90:
        text = "(\n" + "".join(f"    {_literal(item)},\n" for item in value) + ")"
    return f"{name} = {text}" + (f"  # {comment}" if comment else "")


def _literal(value: Any) -> str:
    """Python with double quotes, as the rest of the script."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, tuple):
        inner = ", ".join(map(_literal, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return repr(value)
