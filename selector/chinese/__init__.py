"""Sentences of answers in Chinese: the English one, with holes, then its translation; each stands once, in a JSON here.

    words.json       what things are called: verdicts, instants, categories, terms
    answers.json     the answer and its reasons
    tree.json        what stands beside the decision tree
    notes.json       notes of an estimate
    findings.json    what ``check`` says, and how it is mended
    formulas.json    the formulas of terms, in words
    pictures.json    labels of plots
    wrong.json       what is wrong with the input

Answers are written once, in English, where they are made. Here a sentence is recognised by its fixed words; what stands
in the holes is kept, or translated in turn; a hole called ``maybe...`` may be empty. What is not recognised stays English.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from functools import cache, lru_cache

FILES = ("words", "answers", "tree", "notes", "findings", "formulas", "pictures", "wrong")
HOLE = re.compile(r"{(\w+)}")
MAYBE = "maybe"
# holes without a space in them
ONE_WORD = {"size", "used", "capacity", "strategy", "tree", "same", "high", "rate", "count", "n", "e"}
CHINESE = "zh"


def read(name: str) -> dict[str, str]:
    """One of ``FILES``: English to Chinese."""
    with open(os.path.join(os.path.dirname(__file__), f"{name}.json"), encoding="utf-8") as file:
        found: dict[str, str] = json.load(file)
        return found


@cache
def phrases() -> dict[str, str]:
    """All of them."""
    return {english: chinese for name in FILES for english, chinese in read(name).items()}


@cache
def _patterns() -> tuple[tuple[str, re.Pattern[str], str], ...]:
    """Every sentence with holes: its longest fixed words, and it as an expression; the more exact ones stand first."""
    made = []
    holed = [pair for pair in phrases().items() if HOLE.search(pair[0])]
    for english, chinese in sorted(holed, key=lambda pair: -len(HOLE.sub("", pair[0]))):
        parts = HOLE.split(english)  # fixed words and names of holes in turn
        words = "".join(f"(?P<{p}>{_may_hold(p)})" if i % 2 else re.escape(p) for i, p in enumerate(parts))
        made.append((max(parts[::2], key=len), re.compile(words, re.DOTALL), chinese))
    return tuple(made)


def _may_hold(hole: str) -> str:
    if hole.startswith(MAYBE):
        return ".*?"
    return r"\S+?" if hole in ONE_WORD else ".+?"


@lru_cache(maxsize=8192)
def chinese(text: str) -> str | None:
    """The Chinese of a sentence, a word or a list with commas; None where it is not known."""
    if (known := phrases().get(text)) is not None:
        return known
    for fixed, pattern, told in _patterns():
        if fixed in text and (found := pattern.fullmatch(text)):
            return told.format(**{name: chinese(value) or value for name, value in found.groupdict().items()})
    if ", " in text and ";" not in text:
        parts = [(part, chinese(part)) for part in text.split(", ")]
        if any(told for _, told in parts):
            return "，".join(told or part for part, told in parts)
    return None


def said(text: str, language: str) -> str:
    """A sentence in the language of the page."""
    return (chinese(text) or text) if language == CHINESE else text


def english_left(lines: Iterable[str], language: str) -> bool:
    """Whether some of the sentences stay English in that language."""
    return language == CHINESE and any(chinese(line) is None for line in lines)
