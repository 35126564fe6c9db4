"""Versions of rows that state none: of each library the newest that was out when the row was measured.

First releases of the versions between which the estimators tell a difference, oldest first.
"""

from __future__ import annotations

from collections.abc import Mapping

RELEASES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "transformers": (
        ("2022-01", "4.16.0"), ("2023-10", "4.34.0"), ("2024-07-23", "4.43.0"), ("2024-10-24", "4.46.0"),
        ("2025-01-10", "4.48.0"), ("2025-02-17", "4.49.0"), ("2026-01-26", "5.0.0"),
    ),
    "bitsandbytes": (
        ("2023-07", "0.41.0"), ("2024-01-08", "0.42.0"), ("2024-03-08", "0.43.0"), ("2024-07-23", "0.43.2"),
        ("2024-09-24", "0.44.0"), ("2024-12", "0.45.0"),
    ),
    # 0.1.0 counts from the commit that compiles the loss: nobody ran releases before it
    "torchtitan": (("2024-03", "0.0.1"), ("2025-02", "0.1.0")),
    "liger-kernel": (("2024-08", "0.1.0"), ("2025-08-21", "0.6.2")),
    "litgpt": (("2023-01", "0.1.0"), ("2024-03-07", "0.2.0"), ("2024-07", "0.4.0"), ("2024-10", "0.5.0")),
}  # fmt: skip


# What a stack pinned in those days: litgpt's pyproject.toml and requirements.
PINS: Mapping[str, tuple[tuple[str, str, dict[str, str]], ...]] = {
    "litgpt": (("2023-11-09", "2024-12-27", {"bitsandbytes": "0.42.0"}),),
}


def versions_at(date: str | None, given: Mapping[str, str], stack: str = "") -> dict[str, str]:
    """What the row states; for the rest what the stack pinned, or the newest release by ``date``.

    A date without a day or a month stands for its first day.

    >>> versions_at("2024-08", {"torch": "2.3.1"})["torch"], versions_at("2024-08", {})["transformers"]
    ('2.3.1', '4.43.0')
    """
    found = {}
    for package, releases in RELEASES.items() if date else ():
        out = [version for day, version in releases if day <= date]
        found[package] = out[-1] if out else releases[0][1]
    pinned = next((pins for first, last, pins in PINS.get(stack, ()) if date and first <= date <= last), {})
    return {**found, **pinned, **given}
