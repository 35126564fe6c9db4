"""The decision tree as SVG with the path lit: indented, so that a phone can show it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from textwrap import wrap

from selector.tree.data import LEAVES, QUESTIONS, ROOT
from selector.tree.nodes import Amendment, Answer
from selector.tree.walk import Reading

WIDTH, LINE, STEP, TOP = 400, 26, 20, 8
LIT, DIM, TEXT = "#0550ae", "#b8b8b8", "#1a1a1a"
FONT = 'font-family="system-ui,DejaVu Sans,sans-serif"'
LETTERS = 52  # of a line of small type across the picture


def tree_svg(reading: Reading, billions: float | None = None) -> str:
    """An ``<svg>`` element of the whole tree; answers on the way are bold and dark, the others grey.

    ``billions`` decides between two answers of the same name ("not given, at most 13B" and "above 13B").
    """
    drawing = _Drawing(reading, billions)
    drawing.question(ROOT, 0, True)
    drawing.amended()
    words = f"decision tree, policy {reading.policy}: the way leads to {LEAVES[reading.leaf].text}"
    return (
        f'<svg role="img" class="plot" aria-label="{escape(words)}" viewBox="0 0 {WIDTH} {drawing.y + TOP}" {FONT} '
        f'font-size="13">{"".join(drawing.parts)}</svg>'
    )


class _Drawing:
    """Rows from top to bottom; ``y`` is where the next begins."""

    def __init__(self, reading: Reading, billions: float | None) -> None:
        self.reading, self.billions = reading, billions
        self.answers = {step.id: step.answer for step in reading.path}
        self.parts: list[str] = []
        self.y = TOP

    def text(self, x: float, words: str, *, lit: bool, size: int = 13, colour: str = "") -> None:
        weight = ' font-weight="bold"' if lit else ""
        self.parts.append(
            f'<text x="{x:.0f}" y="{self.y + 17}" font-size="{size}" fill="{colour or (TEXT if lit else "#6a6a6a")}"{weight}>'
            f"{escape(words)}</text>"
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, lit: bool) -> None:
        colour, wide = (LIT, 3) if lit else (DIM, 1.2)
        ends = f'x1="{x1:.0f}" y1="{y1:.0f}" x2="{x2:.0f}" y2="{y2:.0f}"'
        self.parts.append(f'<line {ends} stroke="{colour}" stroke-width="{wide}"/>')

    def question(self, node: str, depth: int, lit: bool) -> None:
        """A question, its answers below it, and what each leads to."""
        asked = QUESTIONS[node]
        lit = lit and node in self.answers
        x = 6 + depth * STEP
        self.text(x, asked.text, lit=lit)
        self.y += LINE
        start, taken = self.y - 4, self.taken(node) if lit else None
        ends: list[tuple[float, bool]] = []
        for answer in asked.answers:
            on = answer is taken
            ends.append((self.y + 12, on))
            self.answer(answer, x + STEP, depth, on)
        for end, on in sorted(ends, key=lambda e: e[1]):  # the lit line over the others
            self.line(x + 5, start, x + 5, end, on)
            self.line(x + 5, end, x + STEP - 3, end, on)

    def answer(self, answer: Answer, x: float, depth: int, on: bool) -> None:
        if answer.to in LEAVES:
            self.text(x, answer.text, lit=on)
            left = x + 14 + (8.6 if on else 7.6) * len(answer.text)
            self.leaf(left, LEAVES[answer.to].text, on)
            self.y += LINE
            return
        self.text(x, answer.text, lit=on)
        self.y += LINE
        self.question(answer.to, depth + 1, on)

    def leaf(self, x: float, words: str, on: bool) -> None:
        wide = 18 + (9.2 if on else 8.2) * len(words)
        fill, stroke = ("#e6f0ff", LIT) if on else ("#fafafa", DIM)
        self.parts.append(
            f'<rect x="{x:.0f}" y="{self.y + 1}" width="{wide:.0f}" height="22" rx="5" fill="{fill}" stroke="{stroke}" '
            f'stroke-width="{2 if on else 1}"/>'
        )
        self.text(x + 8, words, lit=on)

    def taken(self, node: str) -> Answer | None:
        """The answer that was given at a question; of two with one name the one that the size means."""
        found = [a for a in QUESTIONS[node].answers if a.id == self.answers.get(node)]
        for answer in found:
            small = answer.up_to_billions is None or self.billions is None or self.billions <= answer.up_to_billions
            if len(found) == 1 or small:
                return answer
        return found[-1] if found else None

    def amended(self) -> None:
        """Below the tree: rules that have aged and led elsewhere, and where the way ends."""
        moved: Sequence[Amendment] = [a for a in self.reading.amendments if a.to or a.strategy]
        for rule in moved:
            goes = LEAVES[rule.to].text if rule.to in LEAVES else rule.to or rule.strategy or ""
            self.parts.append(f'<line x1="6" x2="{WIDTH - 6}" y1="{self.y + 6}" y2="{self.y + 6}" stroke="{LIT}" '
                              'stroke-dasharray="4 3"/>')  # fmt: skip
            self.y += 6
            self.text(6, f"amended at {rule.at}: {goes.replace('_', ' ')}", lit=True, colour=LIT)
            self.y += LINE - 4
            for line in wrap(rule.today, LETTERS):
                self.text(6, line, lit=False, size=12)
                self.y += 17
        self.y += 6
        self.text(6, "the way ends at:", lit=False)
        self.leaf(118, f"{LEAVES[self.reading.leaf].text}: {self.reading.strategy}", True)
        self.y += LINE
