"""A question as a query string, so that a link reopens it: ``?model=llama-8b&gpus=4xA10&seq_len=4096``."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl, urlencode

from selector.ui.fields import FIELDS, MOST_LETTERS, NAMES

Values = tuple[str, ...]  # one text a field, in the order of ``fields.FIELDS``
MOST_QUERY = 8000  # letters


def query(values: Values) -> str:
    """What is not empty, in the order of the form; the same question always gives the same text."""
    return urlencode([(name, value) for name, value in zip(NAMES, values, strict=True) if value])


def values_of(given: Mapping[str, str]) -> tuple[Values, tuple[str, ...]]:
    """The form that a link describes, and the names of what in it cannot be used: those fields stay empty."""
    wrong = [name for name in given if name not in NAMES]
    values = []
    for field in FIELDS:
        value = given.get(field.name, "").strip()
        words = [w.strip() for w in value.split(",")] if field.several else [value]
        illegal = bool(field.choices) and not field.open and any(w not in field.choices for w in words)
        if value and (illegal or len(value) > MOST_LETTERS):
            wrong.append(field.name)
            value = ""
        values.append(value)
    return tuple(values), tuple(name[:40] for name in wrong)


def parse(text: str) -> tuple[Values, tuple[str, ...]]:
    """The same from the text of a query string."""
    try:
        pairs = parse_qsl(text[:MOST_QUERY], max_num_fields=100)
    except ValueError:
        pairs = []
    return values_of(dict(pairs))
