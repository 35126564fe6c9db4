"""The command that a reader is likely to type next, written out with the question that was asked."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from selector.cli.parser import CLUSTER_FLAGS, HIDDEN_FLAGS, WORKLOAD_FLAGS, WORKLOAD_SWITCHES


def say_next(parsed: argparse.Namespace, command: str) -> None:
    """On stderr, under a table; nothing with ``--quiet`` or where a program reads the answer."""
    if parsed.format == "table" and not parsed.quiet:
        print(f"next: dist-advisor {command}", file=sys.stderr)


def question_words(parsed: argparse.Namespace) -> str:
    """The flags of the question as they were given: model, GPUs, the cluster's facts, the workload."""
    import shlex  # kept out of the start of answers that no person reads

    return " ".join(shlex.quote(word) for word in _words(parsed))


def _words(parsed: argparse.Namespace) -> Iterator[str]:
    for flag in ("model", "gpus", *CLUSTER_FLAGS, *WORKLOAD_FLAGS, *HIDDEN_FLAGS):
        value = getattr(parsed, flag.replace("-", "_"), None)
        if value is not None:
            yield from (f"--{flag}", str(value))
    for flag in WORKLOAD_SWITCHES:
        value = getattr(parsed, flag.replace("-", "_"), None)
        if value is not None:
            yield f"--{flag}" if value else f"--no-{flag}"
