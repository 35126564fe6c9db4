"""The decision tree as a picture (SVG), whole or with the way that was taken lit. No script, no font, no library.

One drawing for reports, the page and the documentation, made for a phone's width; it grows with its container.
``currentColor`` draws what was not taken, so that it can be read on light and dark pages; what was taken is thicker and
coloured, so that print without colour shows it too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape
from itertools import pairwise

from selector.tree.data import LEAVES, QUESTIONS
from selector.tree.draw import edges, leaves
from selector.tree.walk import Reading

WIDTH, HEIGHT = 360, 424
LIT, INK = "#0969da", "#1b1b1b"
_TIP = (
    '<defs><marker id="tip" viewBox="0 0 6 6" refX="5.5" refY="3" markerWidth="6" markerHeight="6" orient="auto">'
    f'<path d="M0 0L6 3L0 6z" fill="{INK}"/></marker></defs>'
)
_OPEN = 'stroke="currentColor" stroke-opacity=".35"'
BOX = (114, 46)  # of a node
LEAN = 44  # how far from the middle of a node its lines may begin
# centre of each node; a test demands one for every node of the tree
PLACES = {
    "size": (180, 30), "compile": (62, 140), "team": (180, 140), "deepspeed_experience": (62, 250),
    "ddp": (58, 366), "fsdp": (180, 366), "deepspeed": (302, 366),
}  # fmt: skip
# where a line carries its label, as a share of its length; in the middle where it does not stand here
LABELS = {
    ("size", "deepspeed"): 0.11, ("compile", "fsdp"): 0.4, ("team", "fsdp"): 0.2, ("team", "deepspeed"): 0.6,
    ("deepspeed_experience", "deepspeed"): 0.6,
}  # fmt: skip
Say = Callable[[str], str]


def way(reading: Reading) -> tuple[tuple[str, str], ...]:
    """The edges that were taken, as (from, to), with those that an amendment added."""
    nodes = [step.id for step in reading.path]
    for rule in reading.amendments:
        if rule.at in LEAVES and rule.at not in nodes and rule.to:
            nodes.append(rule.at)
    nodes.append(reading.leaf)
    return tuple(pairwise(nodes))


def tree_svg(reading: Reading, say: Say = str, chinese: bool = False) -> str:
    """The tree of a reading. ``say`` translates answers and leaves; questions have their own Chinese."""
    lit = set(way(reading))
    answers = {(step.id, step.answer) for step in reading.path}
    passed = {node for pair in lit for node in pair}
    told = f"{reading.policy}: {' > '.join((*(s.answer for s in reading.path), LEAVES[reading.leaf].text))}"
    parts = [
        f'<svg class="tree" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(told)}" '
        f'xmlns="http://www.w3.org/2000/svg" '
        f'font-family="system-ui,sans-serif" font-size="10" fill="currentColor">'
    ]
    drawn = list(_lines(reading.policy, lit, answers, say))
    parts += [line for line, _ in drawn] + [label for _, label in drawn]
    for node in (*QUESTIONS, *LEAVES):
        if node in QUESTIONS:
            text = QUESTIONS[node].chinese if chinese else QUESTIONS[node].text
        elif any(to == node for _, to, _, _ in edges(reading.policy)):
            text = say(LEAVES[node].text)
            text = f"{text} | {reading.strategy}" if node == reading.leaf else text
        else:
            continue
        parts.append(_node(node, text, node in passed))
    return "".join(parts) + "</svg>"


def policy_svg(policy: str) -> str:
    """The whole tree of a policy as a file of its own: what it adds to the documents' tree is dashed and named."""
    there = leaves(policy)
    deepest = max((_depth(a, b) for a, b, _, _ in edges(policy) if PLACES[a][1] == PLACES[b][1]), default=0)
    height = PLACES["fsdp"][1] + BOX[1] / 2 + (deepest / 2 + 16 if deepest else 8)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {height:g}" width="{1.6 * WIDTH:g}" height="{1.6 * height:g}" role="img" '
        f'xmlns="http://www.w3.org/2000/svg" font-family="system-ui,sans-serif" font-size="10" fill="{INK}" '
        f'color="{INK}"><title>The decision tree, policy {escape(policy)}</title>'
        f'{_TIP}<rect width="{WIDTH}" height="{height:g}" fill="#fff"/>'
    ]
    pairs: dict[tuple[str, str], tuple[list[str], list[str]]] = {}
    for source, to, label, rule in edges(policy):
        pairs.setdefault((source, to), ([], []))[bool(rule)].append(label)
    looks = 'stroke="currentColor" stroke-opacity=".6" marker-end="url(#tip)"'
    parts += [_path(pair, looks, not plain) for pair, (plain, _) in pairs.items()]
    parts += [_labels(pair, plain, added) for pair, (plain, added) in pairs.items()]
    parts += [_node(node, QUESTIONS[node].text, False) for node in QUESTIONS]
    parts += [_node(node, f"{LEAVES[node].text} | {LEAVES[node].strategy}", False) for node in there]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _labels(pair: tuple[str, str], plain: list[str], added: list[str]) -> str:
    """Answers a line each; below them, slanted, what the policy calls its additions."""
    first = -5.5 * (len(plain) + len(added) - 1)
    lines = [_label(pair, text, False, first + 11 * at) for at, text in enumerate(plain)]
    return "".join(
        lines + [_label(pair, text, False, first + 11 * (len(plain) + at), True) for at, text in enumerate(added)]
    )


def _lines(
    policy: str, lit: set[tuple[str, str]], answers: set[tuple[str, str]], say: Say
) -> Iterator[tuple[str, str]]:
    """Each pair of nodes once: its line and its label."""
    pairs: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for source, to, label, rule in edges(policy):
        pairs.setdefault((source, to), []).append((label, rule))
    for (source, to), found in pairs.items():
        taken = (source, to) in lit
        if all(rule for _, rule in found) and not taken:
            continue  # an amendment that did not apply: only what the documents drew
        label, amended = _said(source, to, answers, taken) if source in QUESTIONS else ("", taken)
        style = f'stroke="{LIT}" stroke-width="3"' if taken else _OPEN
        yield _path((source, to), style, taken and amended, taken), _label((source, to), say(label), taken)


def _path(pair: tuple[str, str], style: str, dashed: bool, taken: bool = False) -> str:
    dash = ' stroke-dasharray="5 3"' if dashed else ""
    return f'<path class="{"lit" if taken else "way"}" d="{_curve(*pair)}" fill="none" {style}{dash}/>'


def _said(source: str, to: str, answers: set[tuple[str, str]], taken: bool) -> tuple[str, bool]:
    """The answer that a line stands for, and whether only an amendment leads from that answer there."""
    here = [answer for answer in QUESTIONS[source].answers if answer.to == to]
    own = [answer for answer in QUESTIONS[source].answers if (source, answer.id) in answers]
    chosen = [answer for answer in own if answer in here]
    return (chosen or own if taken else here)[0].text, not chosen


def _curve(source: str, to: str) -> str:
    """A straight line downwards; a bow under the row between nodes of one row."""
    (x1, y1), (x2, y2) = _ends(source, to)
    if PLACES[source][1] == PLACES[to][1]:
        return f"M{x1} {y1}Q{(x1 + x2) / 2} {y1 + _depth(source, to)} {x2} {y1}"
    return f"M{x1} {y1}L{x2} {y2}"


def _depth(source: str, to: str) -> float:
    """How far below its row the middle of a bow pulls; a long one passes below the short ones."""
    return 42 if abs(PLACES[source][0] - PLACES[to][0]) < WIDTH / 2 else 78


def _ends(source: str, to: str) -> tuple[tuple[float, float], tuple[float, float]]:
    """From the lower edge of one node, on the side of the other, to the upper edge of that."""
    (x1, y1), (x2, y2) = PLACES[source], PLACES[to]
    if y1 == y2:
        return (x1, y1 + BOX[1] / 2), (x2, y2 + BOX[1] / 2)
    lean = max(-LEAN, min(LEAN, 0.4 * (x2 - x1)))
    return (x1 + lean, y1 + BOX[1] / 2), (x2, y2 - BOX[1] / 2)


def _label(pair: tuple[str, str], text: str, taken: bool, lower: float = 0.0, slanted: bool = False) -> str:
    if not text:
        return ""
    (x1, y1), (x2, y2) = _ends(*pair)
    at = LABELS.get(pair, 0.5)
    x, y = x1 + (x2 - x1) * at, y1 + (y2 - y1) * at + 3 + lower
    if PLACES[pair[0]][1] == PLACES[pair[1]][1]:  # below the bow
        y += _depth(*pair) / 2 + 4
    weight = f' font-weight="bold" fill="{LIT}"' if taken else ' fill-opacity=".75"'
    weight += ' font-style="italic"' if slanted else ""
    return (
        f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="middle" font-size="9" paint-order="stroke" '
        f'stroke="var(--page,#fff)" stroke-width="4"{weight}>{escape(text)}</text>'
    )


def _node(node: str, text: str, taken: bool) -> str:
    x, y = PLACES[node]
    width, height = BOX
    round_ = 4 if node in QUESTIONS else height / 2
    style = (
        f'stroke="{LIT}" stroke-width="2.5"' if taken else 'stroke="currentColor" stroke-opacity=".45"'
    )  # fmt: skip
    rows = list(_wrapped(text))
    first = y + 3.5 - 5.5 * (len(rows) - 1)
    lines = "".join(f'<tspan x="{x}" y="{first + 11 * i:.1f}">{escape(row)}</tspan>' for i, row in enumerate(rows))
    weight = ' font-weight="bold"' if taken else ' fill-opacity=".8"'
    return (
        f'<g class="{"lit" if taken else "node"}" data-node="{node}"><rect x="{x - width / 2}" y="{y - height / 2}" '
        f'width="{width}" height="{height}" rx="{round_}" fill="var(--page,#fff)" {style}/>'
        f'<text text-anchor="middle"{weight}>{lines}</text></g>'
    )


def _wrapped(text: str, letters: int = 19) -> Iterator[str]:
    """Lines of a node; a bar parts lines, as a long name does at its plus signs."""
    for part in text.split(" | "):
        words: Sequence[str] = part.replace("+", " +").split(" ") if len(part) > letters else [part]
        line = ""
        for word in words:
            joined = f"{line}{'' if word.startswith('+') else ' '}{word}" if line else word
            if line and len(joined) > letters:
                yield line
                line = word
            else:
                line = joined
        yield line
