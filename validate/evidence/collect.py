"""Measure what is missing: each question in a forked process, so that engines leave nothing behind."""

from __future__ import annotations

import multiprocessing
import sys
import traceback
from collections.abc import Iterable
from dataclasses import asdict
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

from validate.evidence.matrix import Question
from validate.evidence.store import append, rows, versions

SLOW_IMPORTS = (
    "validate.simulate", "peft", "torch.distributed.fsdp", "transformers.models.llama.modeling_llama",
)  # fmt: skip


def collect(wanted: Iterable[Question], seconds: float, again: bool = False) -> None:
    """Append a row for each question that has none; a question that fails gets a row with its reason."""
    known = set() if again else {row["id"] for row in rows() if "failed" not in row}
    todo = [question for question in wanted if question.id not in known]
    prepared(todo)
    for at, question in enumerate(todo, 1):
        row = measured(question, seconds)
        append(row)
        outcome = row.get("failed") or f"{row['allocated']:,} B at {row['peak']}, {row['seconds']:.0f} s"
        print(f"{at}/{len(todo)} {question.id}: {outcome}", file=sys.stderr, flush=True)


def prepared(todo: Iterable[Question]) -> None:
    """Import once what every question needs."""
    import torch

    torch.set_num_threads(1)  # a forked child cannot use the parent's thread pool
    for name in SLOW_IMPORTS:
        import_module(name)
    if any(question.strategy.startswith("zero") for question in todo):
        import_module("validate.cells.deepspeed_engine").prepare()


def measured(question: Question, seconds: float) -> dict[str, Any]:
    """The row of a question, or the reason why it has none."""
    context = multiprocessing.get_context("fork")
    reader, writer = context.Pipe(duplex=False)
    child = context.Process(target=_work, args=(question, writer), daemon=True)
    child.start()
    writer.close()
    found: dict[str, Any] = {"failed": f"no answer within {seconds:g} s"}
    try:
        if reader.poll(seconds):
            found = reader.recv()
    except EOFError:
        found = {"failed": "the process died"}
    finally:
        child.kill()
        child.join()
    return {"id": question.id, **asdict(question), **found, "versions": versions()}


def _work(question: Question, answers: Connection) -> None:
    import warnings

    warnings.filterwarnings("ignore")
    from validate.simulate import simulate

    try:
        found = simulate(question.resolved())
        answers.send({
            "peak": found.peak, "allocated": found.allocated, "layers": found.layers, "ran": list(found.ran),
            "residual": found.residual, "seconds": round(found.seconds, 1), "cpu_seconds": round(found.cpu_seconds, 1),
            "rss_bytes": found.rss_bytes, "notes": list(found.notes),
            "instants": {name: {"gpu": dict(c.gpu), "host": dict(c.host)} for name, c in found.instants.items()},
        })  # fmt: skip
    except BaseException as reason:
        place = traceback.extract_tb(reason.__traceback__)[-1]
        answers.send({"failed": f"{type(reason).__name__}: {reason} ({place.name})"[:300]})
    answers.close()
