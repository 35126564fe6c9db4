"""Files into a folder, all or none: written beside it, then renamed. What is there already stays unless forced."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from estimators.errors import InputError, short

EXECUTABLE = ".sh"


def write(files: Mapping[str, str], folder: str | os.PathLike[str], force: bool = False) -> tuple[str, ...]:
    """Write ``files`` (relative name -> text) into ``folder`` and return their paths.

    A folder that does not exist appears with everything in it. In one that exists only the named files change, and
    only with ``force`` where they are there. Raises ``InputError`` with one message for all that can go wrong.
    """
    target = Path(folder).expanduser()
    try:
        _check(files, target, force)
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{target.name[:50]}-", suffix=".part", dir=target.parent))
        try:
            _fill(beside, files)
            _move(beside, target, files)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"--emit {short(str(folder), 200)}: nothing was written: {reason}") from None
    return tuple(str(target / name) for name in files)


def _check(files: Mapping[str, str], target: Path, force: bool) -> None:
    if not str(target) or "\0" in str(target):
        raise InputError(f"--emit {short(str(target))} is not a folder's name")
    if target.exists() and not target.is_dir():
        raise InputError(f"--emit {target} is a file; name a folder")
    there = [name for name in files if os.path.lexists(target / name)]
    if there and not force:
        shown = ", ".join(there[:3]) + (f" and {len(there) - 3} more" if len(there) > 3 else "")
        raise InputError(f"--emit {target}: {shown} would be overwritten; name another folder, or give --force")
    for name in there:
        if (target / name).is_dir() and not (target / name).is_symlink():
            raise InputError(f"--emit {target}: {name} is a folder there")


def _fill(beside: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = beside / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())  # a full disk is noticed here, before anything is renamed
        path.chmod(0o755 if name.endswith(EXECUTABLE) else 0o644)


def _move(beside: Path, target: Path, files: Mapping[str, str]) -> None:
    """One rename for a new folder; file by file into an existing one, undone when one fails."""
    beside.chmod(0o755)
    if not target.exists():
        os.rename(beside, target)
        return
    kept = beside / ".before"
    kept.mkdir()
    done: list[str] = []
    try:
        for number, name in enumerate(files):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            if os.path.lexists(target / name):
                os.rename(target / name, kept / str(number))
            done.append(name)
            os.rename(beside / name, target / name)
    except OSError:
        for number, name in enumerate(done):
            with contextlib.suppress(OSError):
                os.unlink(target / name)
            if os.path.lexists(kept / str(number)):
                os.rename(kept / str(number), target / name)
        raise
