"""Plain data -> YAML that every loader reads the same: words that YAML takes for booleans are quoted."""

from __future__ import annotations

from typing import Any


def dump(data: Any, comment: str = "") -> str:
    """Block style, keys in the order given, each line of ``comment`` as one of the file's head."""
    import yaml

    head = "".join(f"# {line}\n" for line in comment.splitlines())
    # A float such as 2e-05 is text in YAML 1.1 without a dot; the representer writes 2.0e-05.
    return head + yaml.safe_dump(data, sort_keys=False, default_flow_style=False, allow_unicode=True, width=1000)
