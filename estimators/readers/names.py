"""Tables of key names, written as words."""

from __future__ import annotations


def names(words: str) -> frozenset[str]:
    """The words of a text, as a set: ``names("stage offload_param")``."""
    return frozenset(words.split())
