"""A report to a file, whole or not at all."""

from __future__ import annotations

import os
import tempfile

from estimators.errors import InputError, short


def write_page(text: str, path: str | os.PathLike[str]) -> None:
    """Write text beside the file, then rename it. Raises ``InputError``."""
    name = os.path.abspath(os.fspath(path))
    try:
        handle, partial = tempfile.mkstemp(dir=os.path.dirname(name), prefix=".report-")
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        os.chmod(partial, 0o644)
        os.replace(partial, name)
    except OSError as error:
        raise InputError(f"report {short(os.fspath(path))} cannot be written: {error.strerror}") from None
