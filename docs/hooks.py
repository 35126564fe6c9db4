"""What mkdocs does besides: the pictures are drawn into the site."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

HERE = Path(__file__).resolve().parent


def on_files(files: Files, config: Any) -> Files:
    """``img/NAME.svg`` for every picture; versions are those of the pages, whatever is installed."""
    sys.path[:0] = [folder for folder in (str(HERE.parent), str(HERE)) if folder not in sys.path]
    from making import figures
    from making.session import Session

    with Session():
        for name in figures.names():
            files.append(File.generated(config, f"img/{name}", content=figures.svg(name)))
    return files
