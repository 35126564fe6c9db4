"""Pictures to files: the kind is the name's ending; the same picture gives the same bytes."""

from __future__ import annotations

import io
import os
import re
import tempfile
from typing import TYPE_CHECKING, Any

from estimators.errors import InputError, MissingDependency, short
from selector.plots.style import DPI, INSTALL, settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ENDINGS = (".png", ".svg", ".pdf")
# what would differ from one day or machine to the next
METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None, "Format": None, "Type": None},
    "pdf": {"CreationDate": None, "Creator": "dist-advisor", "Producer": None},
}


def check(path: str | os.PathLike[str]) -> str:
    """The kind of picture that a file name asks for, before anything is computed.

    Raises ``InputError`` for another ending or a folder that is not there, ``MissingDependency`` without matplotlib.
    """
    name = os.fspath(path)
    ending = os.path.splitext(name)[1].lower()
    if ending not in ENDINGS:
        raise InputError(f"a picture {short(name)} ends in none of {', '.join(ENDINGS)}; name it like memory.png")
    folder = os.path.dirname(os.path.abspath(name))
    if not os.path.isdir(folder):
        raise InputError(f"picture {short(name)}: there is no folder {folder}")
    if os.path.isdir(name):
        raise InputError(f"picture {short(name)} is a folder; name a file")
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise MissingDependency(INSTALL)
    return ending[1:]


def rendered(figure: Figure, kind: str) -> bytes:
    """The picture as ``png``, ``svg`` or ``pdf``."""
    page = io.BytesIO()
    with settings():
        figure.savefig(page, format=kind, dpi=DPI, metadata=METADATA[kind])
    return page.getvalue()


def save(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a picture whole or not at all. Raises like :func:`check`."""
    content = rendered(figure, check(path))
    name = os.path.abspath(os.fspath(path))
    try:
        handle, partial = tempfile.mkstemp(dir=os.path.dirname(name), prefix=".plot-")
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(partial, 0o666 & ~_umask())
        os.replace(partial, name)
    except OSError as error:
        raise InputError(f"picture {short(os.fspath(path))} cannot be written: {error.strerror}") from None


def _umask() -> int:
    found = os.umask(0)
    os.umask(found)
    return found


def svg(figure: Figure, title: str) -> str:
    """The picture as an ``<svg>`` element to stand inside HTML: no header, no metadata, scales with its column."""
    from html import escape

    text = rendered(figure, "svg").decode("utf-8")
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text)
    text = re.sub(r'<g id="[^"]*">', "<g>", text)
    size = re.match(r'<svg[^>]*width="([\d.]+)pt"[^>]*viewBox="([^"]*)"', text)
    view = size.group(2) if size else "0 0 540 360"
    body = text[text.index(">") + 1 :]
    return f'<svg role="img" aria-label="{escape(title)}" viewBox="{view}" class="plot">{body.strip()}'
