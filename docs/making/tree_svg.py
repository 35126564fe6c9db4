"""The decision tree as an SVG: no script, no font of its own, nothing fetched."""

from __future__ import annotations

from html import escape

from selector.tree import draw
from selector.tree.data import LEAVES, QUESTIONS

# Places of the nodes in a 760 x 520 drawing: the tree has the three questions below the first in one row.
PLACES = {
    "size": (380, 50), "compile": (120, 190), "team": (640, 190), "deepspeed_experience": (120, 320),
    "fsdp": (320, 450), "deepspeed": (590, 450), "ddp": (455, 580),
}  # fmt: skip
WIDE, HIGH, TALL = 208, 46, 640
STYLE = """<style>
text { font: 13px sans-serif; text-anchor: middle; dominant-baseline: central; fill: #1b1b1b }
.label { font-size: 11px; paint-order: stroke; stroke: #fff; stroke-width: 4px }
.question { fill: #eaf2fb; stroke: #0b5cad } .leaf { fill: #e6f4ea; stroke: #1a7f37 }
.edge { fill: none; stroke: #555; stroke-width: 1.4; marker-end: url(#tip) } .amended { stroke-dasharray: 5 4 }
</style>
<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
<path d="M0 0L8 4L0 8z" fill="#555"/></marker></defs>
<rect width="760" height="100%" fill="#fff"/>"""


def svg(policy: str) -> str:
    """Edges of the documents drawn through, those that a policy adds dashed."""
    edges = list(draw.edges(policy))
    nodes = [*QUESTIONS, *draw.leaves(policy)]
    height = TALL if "ddp" in nodes else 500
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 {height}" role="img">',
        f"<title>The decision tree, policy {policy}</title>", STYLE,
    ]  # fmt: skip
    merged: dict[tuple[str, str, bool], list[str]] = {}
    for source, to, label, amended in edges:
        merged.setdefault((source, to, bool(amended)), []).append(label)
    labels = []
    for (source, to, amended), words in merged.items():
        line, text = _edge(source, to, words, amended, (source, to, False) in merged)
        parts.append(line)
        labels.append(text)
    parts += [_node(name) for name in nodes]
    return "\n".join([*parts, *labels, "</svg>"]) + "\n"


def _edge(source: str, to: str, words: list[str], amended: bool, has_twin: bool) -> tuple[str, str]:
    """The curve and the words on it, a line each; an added edge beside one of the documents bows out."""
    (x1, y1), (x2, y2) = PLACES[source], PLACES[to]
    bow = (190.0 if x1 == x2 else 110.0) if amended and has_twin else 0.0
    if y1 == y2:  # side by side
        x1, x2 = x1 - WIDE / 2, x2 + WIDE / 2
        cx, cy = (x1 + x2) / 2, y1 - 110.0
    elif (source, to) == ("compile", "fsdp"):  # past the question below
        x1 += WIDE / 2
        y2 -= HIGH / 2
        cx, cy = x2, y1
    else:
        y1, y2 = y1 + HIGH / 2, y2 - HIGH / 2
        cx, cy = (x1 + x2) / 2 + bow, (y1 + y2) / 2 - (bow / 3 if x1 != x2 else 0)
    x, y = 0.25 * x1 + 0.5 * cx + 0.25 * x2, 0.25 * y1 + 0.5 * cy + 0.25 * y2
    lines = "".join(
        f'<text class="label" x="{x:.0f}" y="{y + (i - (len(words) - 1) / 2) * 14:.0f}">{escape(word)}</text>'
        for i, word in enumerate(words)
    )
    css = "edge amended" if amended else "edge"
    return f'<path class="{css}" d="M{x1:g} {y1:g}Q{cx:g} {cy:g} {x2:g} {y2:g}"/>', lines


def _node(name: str) -> str:
    x, y = PLACES[name]
    if name in QUESTIONS:
        lines, css = [QUESTIONS[name].text], "question"
    else:
        lines, css = [LEAVES[name].text, LEAVES[name].strategy], "leaf"
    texts = "".join(
        f'<text x="{x}" y="{y + (i - (len(lines) - 1) / 2) * 16:.0f}">{escape(line)}</text>'
        for i, line in enumerate(lines)
    )
    corner = 6 if css == "leaf" else 22
    box = f'<rect class="{css}" x="{x - WIDE / 2}" y="{y - HIGH / 2}" width="{WIDE}" height="{HIGH}" rx="{corner}"/>'
    return box + texts
