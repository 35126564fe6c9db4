"""What can go wrong, and with which exit status.

AdvisorError
|-- InputError            2   the input is wrong: what, the value, the nearest valid ones
|   |-- UnknownName       2   no such model, card, strategy ...; carries suggestions
|   `-- IllegalCombination 2  each value is legal, together they are not; says why
|-- NotModelled           2   legal, but nothing here can say what it costs
`-- MissingDependency     3   an engine, library or device is needed and absent
"""

from __future__ import annotations

from collections.abc import Iterable


class AdvisorError(Exception):
    """Base of everything that this project raises for a user."""

    exit_status = 2


class InputError(AdvisorError, ValueError):
    """A value that cannot be used. The message names it and says what to write instead."""


class UnknownName(InputError):
    """A name that no catalogue has; close matches stand in the message."""

    def __init__(self, what: str, name: str, known: Iterable[str], hint: str = "") -> None:
        self.suggestions = of_its_kind(name, known) if what == "model" else closest(name, known)
        near = f"; did you mean {' or '.join(self.suggestions)}?" if self.suggestions else ""
        joint = " " if near or hint.startswith("(") else "; "
        super().__init__(f"unknown {what} {short(name)}{near}{joint + hint if hint else ''}")


class IllegalCombination(InputError):
    """Values that exclude each other; the message gives the reason and what to change."""


class NotModelled(AdvisorError):
    """A legal request that the estimators cannot answer; the message says what is missing."""


class MissingDependency(AdvisorError):
    """Something to install or plug in first; the message says what and how."""

    exit_status = 3


def short(value: object, limit: int = 60) -> str:
    """``repr`` of a user's value, cut so that a message stays one line."""
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def closest(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """The known names most like ``name``, best first; empty when nothing is close."""
    from difflib import get_close_matches  # only on the error path: difflib costs start-up time

    by_lower = {k.lower(): k for k in known}
    return [by_lower[m] for m in get_close_matches(name.lower()[:100], list(by_lower), count, 0.6)]


def of_its_kind(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """As ``closest``, for models: a family is the letters that a name begins with, and another family is no near miss.

    >>> of_its_kind("vit-large", ["T5-large", "ViT-base", "vit"])
    ['ViT-base']
    """
    from difflib import SequenceMatcher
    from itertools import takewhile

    def family(of: str) -> str:
        return "".join(takewhile(str.isalpha, of.rpartition("/")[2].lower()))

    mine = family(name)
    alike = [(SequenceMatcher(None, mine, family(near)).ratio(), near) for near in closest(name, known, 12)]
    ranked = sorted((one for one in alike if one[0] >= 0.6), key=lambda one: one[0] < 1)
    return [near for _, near in ranked][:count]
