"""Misspelt words, told from other words without the cost of a similarity search."""

from __future__ import annotations


def one_slip(a: str, b: str) -> bool:
    """Whether one letter makes the one of the other: added, missing, wrong, or two swapped."""
    if abs(len(a) - len(b)) > 1:
        return False
    start = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    a, b = a[start:], b[start:]
    while a and b and a[-1] == b[-1]:
        a, b = a[:-1], b[:-1]
    return (len(a) <= 1 and len(b) <= 1) or (len(a) == 2 and a == b[::-1])
