"""Pictures in Chinese: drawn as always, then every text is said in Chinese, in a font that has its signs.

Without such a font on the machine a picture stays as it is: boxes in place of words would help nobody.
"""

from __future__ import annotations

import re
from functools import cache
from math import ceil
from typing import TYPE_CHECKING, Any

from selector.chinese import chinese, phrases
from selector.plots.style import settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# what Linux, macOS and Windows bring, simplified signs first
FONTS = (
    "Noto Sans CJK SC", "Noto Sans SC", "Source Han Sans SC", "Source Han Sans CN", "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei", "Droid Sans Fallback", "PingFang SC", "Hiragino Sans GB", "Heiti SC", "STHeiti",
    "Microsoft YaHei", "SimHei", "Noto Sans CJK JP", "Arial Unicode MS",
)  # fmt: skip

_BY = "\N{NO-BREAK SPACE}x\N{NO-BREAK SPACE}"
# a word or a Chinese sign, with the space before it and the punctuation after it
_PIECES = re.compile(r" ?（?(?:[^ \u2e80-\uffff]+|[\u2e80-\uffff])[，。；：）]*")


@cache
def font() -> str | None:
    """A font of this machine with Chinese signs. Raises ``MissingDependency`` without matplotlib."""
    with settings():
        from matplotlib import font_manager

        there = set(font_manager.get_font_names())
        return next((name for name in FONTS if name in there), None)


def in_chinese(figure: Figure) -> Figure:
    """The same figure with Chinese words; unchanged where :func:`font` finds none."""
    name = font()
    if name is None:
        return figure
    from matplotlib.text import Text

    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            names = [text.get_text() for text in axis.get_ticklabels()]
            if names != (told := [_said(name) for name in names]):
                axis.set_ticks(axis.get_ticklocs(), told)
    found: list[Any] = figure.findobj(Text)
    for text in found:
        text.set_text(_said(text.get_text()))
        text.set_fontfamily(["DejaVu Sans", name])
    return figure


def _said(text: str) -> str:
    """A text in Chinese: line by line where each line says something, as a whole where it was only folded."""
    lines = text.replace("\N{NO-BREAK SPACE}", " ").split("\n")
    whole = chinese(" ".join(lines))
    if whole is None or all(line in phrases() for line in lines):
        return "\n".join(chinese(line) or line for line in lines)
    return _folded(whole.replace(" x ", _BY), max(map(len, lines))) if len(lines) > 1 else whole


def _folded(text: str, columns: int) -> str:
    """Lines of about equal length, at most so many columns, of which a Chinese sign takes two; no word is broken."""
    pieces = [(piece, sum(2 if ord(sign) > 0x2E80 else 1 for sign in piece)) for piece in _PIECES.findall(text)]
    total = sum(wide for _, wide in pieces)
    columns = min(columns, ceil(total / ceil(total / columns)) + 4)
    lines, taken = [""], 0
    for piece, wide in pieces:
        if lines[-1] and taken + wide > columns:
            lines.append("")
            taken = 0
        lines[-1] += piece if lines[-1] else piece.lstrip()
        taken += wide
    return "\n".join(line.rstrip() for line in lines)
