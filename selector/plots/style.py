"""How every picture looks: colours, hatches, sizes, words. One lock around matplotlib's global settings.

Colours are those of reports, told apart by colour-blind readers; in print without colour the hatches tell them apart.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from estimators.errors import MissingDependency
from estimators.result import CATEGORIES
from estimators.values import dataclass
from selector.report.text import CATEGORY_COLOURS, CATEGORY_WORDS, OUTSIDE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INSTALL = "pictures need matplotlib; install it: pip install 'dist-advisor[plots]'"
INK, QUIET, CARD, EDGE = "#1a1a1a", "#666666", "#b00020", "#2b2b2b"
MOST_LETTERS = 120  # of a text that a user wrote
DPI = 150


@dataclass(frozen=True, slots=True)
class Fill:
    """A colour and the hatch that tells it apart in print."""

    colour: str
    hatch: str = ""


HATCHES = {"gradients": "//", "master": "\\\\", "optimizer": "..", "logits": "xx", "buffers": "--", "temporaries": "||"}
FILLS: Mapping[str, Fill] = {name: Fill(colour, HATCHES.get(name, "")) for name, colour in CATEGORY_COLOURS.items()}
LINES = (
    Fill("#0072B2", "-"), Fill("#D55E00", "--"), Fill("#009E73", "-."), Fill("#CC79A7", ":"),
    Fill("#56B4E9", "-"), Fill("#E69F00", "--"),
)  # fmt: skip
MARKERS = "osD^vP"
SETTINGS: Mapping[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": QUIET,
    "axes.axisbelow": True,
    "axes.grid": False,
    "grid.color": "#d9d9d9",
    "grid.linewidth": 0.6,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "hatch.linewidth": 0.6,
    "text.parse_math": False,  # a $ in a name is a $
    "text.color": INK,
    "svg.hashsalt": "dist-advisor",
    "svg.fonttype": "path",
    "pdf.fonttype": 42,
    "path.simplify": False,
}
_LOCK = threading.RLock()  # matplotlib's settings belong to the process


def ready() -> None:
    """Import what a picture needs, which takes as long as drawing one. Raises ``MissingDependency``."""
    with settings():
        import matplotlib.backends.backend_agg
        import matplotlib.figure  # noqa: F401


@contextmanager
def settings() -> Iterator[None]:
    """matplotlib with this project's look. Raises ``MissingDependency`` without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        raise MissingDependency(INSTALL) from None
    with _LOCK, matplotlib.rc_context(dict(SETTINGS)):
        yield


def sheet(width: float, height: float, rows: int = 1, columns: int = 1, **kind: Any) -> tuple[Figure, Any]:
    """A figure that belongs to no global state, and its axes; shows itself as PNG in a notebook."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, **kind)
    setattr(figure, "_repr_png_", lambda: _png(figure))  # noqa: B010 - not every notebook has matplotlib's hook
    return figure, axes


def _png(figure: Figure) -> bytes:
    from selector.plots.saving import rendered

    return rendered(figure, "png")


def printable(text: object, most: int = MOST_LETTERS) -> str:
    """A user's text on one line, of signs that the font has, shortened in the middle."""
    words = " ".join(str(text).split())
    found = "".join(c if c.isprintable() and c in _glyphs() else "?" for c in words)
    return found if len(found) <= most else f"{found[: most // 2]}…{found[-(most - most // 2 - 1) :]}"


class _Glyphs:
    """What the font can draw; read once."""

    known: frozenset[str] | None = None


def _glyphs() -> frozenset[str]:
    if _Glyphs.known is None:
        from matplotlib import font_manager
        from matplotlib.ft2font import FT2Font

        font = FT2Font(font_manager.findfont("DejaVu Sans"))
        _Glyphs.known = frozenset(map(chr, font.get_charmap()))
    return _Glyphs.known


def legend_of(categories: set[str], outside: bool = False) -> list[Any]:
    """Handles for the categories that occur, in the order in which they are stacked; then what is not a tensor."""
    from matplotlib.patches import Patch

    found = [
        Patch(facecolor=FILLS[c].colour, hatch=FILLS[c].hatch, edgecolor=EDGE, linewidth=0.4, label=CATEGORY_WORDS[c])
        for c in CATEGORIES
        if c in categories
    ]
    if outside:
        found.append(Patch(facecolor="none", edgecolor=QUIET, linestyle=":", linewidth=0.7, label=OUTSIDE))
    return found


def amount(value: float) -> str:
    """GiB as a label: three digits, small amounts not rounded away.

    >>> amount(0.0312), amount(3.456), amount(149.59)
    ('0.031', '3.46', '150')
    """
    if value >= 100:
        return f"{value:,.0f}"
    if value >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 0.1 or not value else f"{value:.2g}"
