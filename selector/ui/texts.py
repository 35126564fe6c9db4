"""The page's words, from ``texts.json``: one key, one text a language. A number or a name goes where ``{it}`` stands."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import cache

LANGUAGES = {"en": "English", "zh": "中文"}
Words = Callable[..., str]


@cache
def catalogue() -> dict[str, dict[str, str]]:
    with open(os.path.join(os.path.dirname(__file__), "texts.json"), encoding="utf-8") as file:
        found: dict[str, dict[str, str]] = json.load(file)
        return found


def has(key: str) -> bool:
    return key in catalogue()


@cache
def words(language: str) -> Words:
    """``words("zh")("fits")``; braces are filled by keywords. Raises ``KeyError`` for a text that is missing."""

    def say(key: str, **values: object) -> str:
        text = catalogue()[key][language]
        return text.format(**values) if values else text

    return say
