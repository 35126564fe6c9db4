"""A configuration that names another file: found beside it or in the working folder, and read once, never further."""

from __future__ import annotations

from pathlib import Path

from estimators.errors import short
from estimators.readers.reading import Draft
from estimators.readers.safe import load
from estimators.readers.section import Section


def follow(section: Section, key: str, draft: Draft) -> Section:
    """The file that ``key`` names, as a section whose places start with its name. Raises ``InputError``."""
    name = section.word(key) or ""
    candidates = [section.document.path.parent / name, Path(name)]  # the launchers look in the working folder
    file = next((path for path in candidates if _is_file(path)), None)
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
