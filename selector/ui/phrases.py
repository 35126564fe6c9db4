"""Sentences of answers in the page's language, from ``phrases.json``: the English one with holes, then its translation.

Answers are written once, in English, where they are made. Here a sentence is recognised by its fixed words; what stands
in the holes is kept, or translated in turn. What is not recognised stays English.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from functools import cache, lru_cache

HOLE = re.compile(r"{(\w+)}")
LETTERS, ANYTHING = r"\S+?", ".+?"
ONE_WORD = {
    "size",
    "used",
    "capacity",
    "strategy",
    "tree",
    "same",
    "high",
    "rate",
    "count",
}  # holes without a space in them
CHINESE = "zh"


@cache
def phrases() -> dict[str, dict[str, str]]:
    with open(os.path.join(os.path.dirname(__file__), "phrases.json"), encoding="utf-8") as file:
        found: dict[str, dict[str, str]] = json.load(file)
        return found


@cache
def _patterns() -> tuple[tuple[re.Pattern[str], str], ...]:
    """Every sentence as an expression: the longest first, so that the more exact one is found."""
    made = []
    for english, chinese in sorted(phrases()["sentences"].items(), key=lambda pair: -len(HOLE.sub("", pair[0]))):
        parts = HOLE.split(english)  # fixed words and names of holes in turn
        words = "".join(
            f"(?P<{p}>{LETTERS if p in ONE_WORD else ANYTHING})" if i % 2 else re.escape(p) for i, p in enumerate(parts)
        )
        made.append((re.compile(words), chinese))
    return tuple(made)


@lru_cache(maxsize=4096)
def chinese(text: str) -> str | None:
    """The Chinese of a sentence, a word or a list with commas; None where it is not known."""
    known = phrases()
    if text in known["words"] or text in known["terms"]:
        return known["words"].get(text) or known["terms"][text]
    for pattern, told in _patterns():
        if found := pattern.fullmatch(text):
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
