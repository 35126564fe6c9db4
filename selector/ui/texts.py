"""The page's own words, from ``texts.json``: one key, one text a language. A number or a name goes where ``{it}`` stands.

What answers say, and what things are called in them, stands in ``selector.chinese``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from functools import cache

from estimators.values import dataclass
from selector.chinese import english_left, said

LANGUAGES = {"en": "English", "zh": "中文"}


@cache
def catalogue() -> dict[str, dict[str, str]]:
    with open(os.path.join(os.path.dirname(__file__), "texts.json"), encoding="utf-8") as file:
        found: dict[str, dict[str, str]] = json.load(file)
        return found


def has(key: str) -> bool:
    return key in catalogue()


@dataclass(frozen=True, slots=True)
class Words:
    """``words("zh")("launch")`` is a text of the page, ``words("zh").of("backward")`` what an answer says, translated."""

    language: str

    def __call__(self, key: str, **values: object) -> str:
        """Braces are filled by keywords. Raises ``KeyError`` for a text that is missing."""
        text = catalogue()[key][self.language]
        return text.format(**values) if values else text

    def of(self, text: str) -> str:
        """A sentence, term or word of an answer; English where it is not known."""
        return said(text, self.language)

    def knows(self, lines: Iterable[str]) -> bool:
        """Whether none of the sentences would stay English on a page of another language."""
        return not english_left(lines, self.language)


@cache
def words(language: str) -> Words:
    return Words(language)
