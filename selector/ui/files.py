"""The folder that runs the answer: its files to read, and all of them as one zip."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping

from selector.configs.folder import EXECUTABLE
from selector.ui.answer import about, kindly
from selector.ui.html import element, folded, join
from selector.ui.link import Values, query
from selector.ui.questions import recommendation
from selector.ui.texts import words

ADDRESS = "/files.zip"
_WHEN = (1980, 1, 1, 0, 0, 0)  # the same answer gives the same bytes


def emitted(values: Values, local: bool) -> Mapping[str, str]:
    """Text by file name. Raises ``NotModelled`` where nothing fits, and what the stack has no word for."""
    from selector.configs import files_of

    return files_of(recommendation(values, local))


def files(values: Values, language: str, local: bool) -> str:
    """HTML of the panel. Never raises."""
    return kindly(_files, language, values, language, local)


def _files(values: Values, language: str, local: bool) -> str:
    say = words(language)
    made = emitted(values, local)
    size = sum(len(text.encode()) for text in made.values())
    link = element(
        "a", say("download", count=len(made), size=f"{size / 1024:.0f}"), "button", id="download",
        href=f"{ADDRESS}?{query(values)}", download="dist-advisor.zip",
    )  # fmt: skip
    shown = [folded(element("code", name), element("pre", text, "file"), data_file=name) for name, text in made.items()]
    return join((about(recommendation(values, local), say), link, element("p", say("files.caption"), "quiet"), *shown))


def zipped(values: Values, local: bool) -> bytes:
    """The same files in a folder ``run/``; scripts keep the right to be run. Raises like :func:`emitted`."""
    page = io.BytesIO()
    with zipfile.ZipFile(page, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in emitted(values, local).items():
            entry = zipfile.ZipInfo(f"run/{name}", _WHEN)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o755 if name.endswith(EXECUTABLE) else 0o644) << 16
            archive.writestr(entry, text)
    return page.getvalue()
