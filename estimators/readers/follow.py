"""A configuration that names another file: found beside it or in the working folder, and read once, never further."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from estimators.errors import short
from estimators.readers.reading import Draft
from estimators.readers.safe import Document, load
from estimators.readers.section import Section

_confined: ContextVar[bool] = ContextVar("confined", default=False)


@contextmanager
def confined() -> Iterator[None]:
    """Inside it a file may name only files of its own folder: for configurations that a stranger uploaded."""
    before = _confined.set(True)
    try:
        yield
    finally:
        _confined.reset(before)


def named_file(document: Document, name: str) -> Path | None:
    """The file that a configuration means: beside it, else in the working folder, as the launchers look for it."""
    beside = document.path.parent / name
    if _confined.get():
        return beside if name == Path(name).name and _is_file(beside) and not beside.is_symlink() else None
    return next((path for path in (beside, Path(name)) if _is_file(path)), None)


def follow(section: Section, key: str, draft: Draft) -> Section:
    """The file that ``key`` names, as a section whose places start with its name. Raises ``InputError``."""
    name = section.word(key) or ""
    file = named_file(section.document, name)
    if file is None:
        raise section.error(
            key, f"no file {short(name, 120)} beside {section.document.name} or in the working folder; correct the path"
        )
    document = load(file)
    draft.files.append(document.path)
    return Section(document, document.data, label=f"{document.name}: ")


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that is too long or holds a NUL
        return False
