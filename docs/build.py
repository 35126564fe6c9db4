"""Run everything that README and the pages show, and write its output into them.

    python docs/build.py                  # all pages
    python docs/build.py docs/accuracy.md # some
    python docs/build.py --check          # writes nothing; exits with 1 and the difference where a page is not fresh

``making/pages.py`` says which blocks are run. Pages that are generated whole stand in ``GENERATED``; figures are made
while mkdocs builds (``making/figures.py``), so none can be old.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT), str(HERE)]

import make_documents  # noqa: E402
from making import ledgers, pages, reference_cli, reference_json, reference_python, sources  # noqa: E402
from making.session import Broken, Session  # noqa: E402

from selector.checks import reference as rules  # noqa: E402

GENERATED: dict[str, Callable[[], str]] = {
    "docs/documents.md": make_documents.page,
    "docs/rules.md": rules.reference,
    "docs/reference/cli.md": reference_cli.page,
    "docs/reference/python.md": reference_python.page,
    "docs/reference/json.md": reference_json.page,
    "docs/sources.md": sources.page,
    "docs/ledgers.md": ledgers.page,
    "docs/dist-advisor.1": reference_cli.man,
}
# Printed by commands that start real engines or take minutes; each table stands under its command.
BY_OTHERS = ("docs/accuracy.md", "docs/formulas-time.md")


def run_pages() -> list[str]:
    found = [ROOT / "README.md", ROOT / "README.zh.md", *sorted(HERE.rglob("*.md"))]
    names = [path.relative_to(ROOT).as_posix() for path in found if path.exists()]
    return [name for name in names if name not in GENERATED and name not in BY_OTHERS]


def fresh(name: str) -> str:
    """A page as it should be."""
    if name not in GENERATED:
        return pages.refreshed((ROOT / name).read_text(encoding="utf-8"), name)
    with Session():
        return GENERATED[name]()


def difference(name: str) -> str:
    """Empty where the page is as a fresh run writes it."""
    path = ROOT / name
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    lines = difflib.unified_diff(old.splitlines(), fresh(name).splitlines(), name, f"{name}, run now", lineterm="", n=1)
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    check = "--check" in arguments
    chosen = [Path(a).resolve().relative_to(ROOT).as_posix() for a in arguments if not a.startswith("-")]
    status = 0
    for name in chosen or [*GENERATED, *run_pages()]:
        try:
            if check:
                found = difference(name)
                print(found or f"{name} is fresh")
                status |= bool(found)
                continue
            text = fresh(name)
        except Broken as error:
            print(error, file=sys.stderr)
            status = 1
            continue
        path = ROOT / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"wrote {name}")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
