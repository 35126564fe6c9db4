"""The answer of a validation: rows, verdict, what was scaled, what went wrong; as JSON of the contract."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from estimators.memory import Estimate
from validate.compare import ALL, Row
from validate.job import Broken

SCHEMA = "dist-advisor/validation/1"
# instant -> categories whose tensors are made one for each weight, then
MADE_BY_WEIGHT = {
    "load": ("params",),
    "backward": ("gradients",),
    "reduce": ("gradients",),
    "step": ("optimizer", "master"),
}
WIDTHS = (2, 4)  # bytes of an element
FILE = "validation.json"


@dataclass(frozen=True)
class Failure:
    """Why there is no result, in words; of an allocation that failed, the predicted term that is nearest in size."""

    kind: str
    reason: str
    rank: int | None = None
    instant: str = ""
    asked_bytes: int | None = None
    term: str = ""
    term_bytes: int | None = None
    detail: str = ""

    @classmethod
    def of(cls, broken: Broken, estimate: Estimate) -> Failure:
        term, size = _matching(broken, estimate)
        return cls(
            broken.kind, broken.reason, broken.rank, broken.instant, broken.asked_bytes, term, size, broken.detail
        )

    def __str__(self) -> str:
        at = f" at {self.instant}" if self.instant and self.instant not in self.reason else ""
        asked = f", {self.asked_bytes:,} bytes were asked for" if self.asked_bytes else ""
        term = f"; nearest predicted term: {self.term} ({self.term_bytes:,} bytes)" if self.term else ""
        return f"{self.reason}{at}{asked}{term}"


def _matching(broken: Broken, estimate: Estimate) -> tuple[str, int | None]:
    """The predicted term whose size is nearest to what was asked for, at that instant where two are as near.

    An instant lists what is alive at its largest moment: a buffer that is made a little later stands in the next ones.
    What is made weight by weight is asked for in pieces: a size that is a weight's belongs to such a term.
    """
    if not broken.asked_bytes:
        return "", None
    asked, place = broken.asked_bytes, "gpu"
    piece = _piece(asked, broken.instant, estimate)
    if piece is not None:
        return piece
    terms = [(abs(t.bytes - asked), i.name != broken.instant, at, t)
             for at, i in enumerate(estimate.instants) for t in i.terms if t.place == place]  # fmt: skip
    best = min(terms, default=None, key=lambda found: found[:3])
    return (best[3].name, best[3].bytes) if best is not None else ("", None)


def _piece(asked: int, instant: str, estimate: Estimate) -> tuple[str, int] | None:
    """The term of this instant that is made weight by weight, where a weight or its shard has just this size."""
    instants = {i.name: i for i in estimate.instants}
    if instant not in MADE_BY_WEIGHT or instant not in instants:
        return None
    terms = [t for t in instants[instant].terms if t.category in MADE_BY_WEIGHT[instant] and t.place != "nvme"]
    if not terms or any(t.bytes == asked for i in estimate.instants for t in i.terms if t.place == "gpu"):
        return None
    ranks = {1, estimate.run.ranks}
    for name, weight in estimate.run.model.named_parameters():
        if any(asked == -(-weight.numel // n) * size for n in ranks for size in WIDTHS):
            term = max(terms, key=lambda t: t.bytes)
            return f"{term.name}, here a tensor of the size of {name}", term.bytes
    return None


@dataclass(frozen=True)
class Report:
    """Measured beside predicted. ``status``: agrees, differs or failed; ``error``: peak predicted / measured - 1."""

    mode: str
    strategy: str
    ranks: int
    device: str
    status: str
    estimate: Estimate
    rows: tuple[Row, ...] = ()
    error: float | None = None
    scaled: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    counters: Mapping[str, Mapping[str, int | None]] = field(default_factory=dict)
    sites: Mapping[str, tuple[tuple[str, str, int], ...]] = field(default_factory=dict)
    process_bytes: int | None = None
    rss_bytes: tuple[int, ...] = ()
    step_seconds: float | None = None
    failure: Failure | None = None
    why: str = ""
    notes: tuple[str, ...] = ()

    @property
    def exit_status(self) -> int:
        """0 agrees; 1 differs or failed; 3 something that the run needs is missing."""
        if self.failure is not None:
            return {"missing": 3, "compiler": 3, "interrupted": 130, "terminated": 143}.get(self.failure.kind, 1)
        return 0 if self.status == "agrees" else 1

    @property
    def tokens_per_s(self) -> float | None:
        """Of one GPU."""
        work = self.estimate.run.workload
        tokens = work.micro_batch * work.seq_len * work.grad_accum
        return tokens / self.step_seconds if self.step_seconds else None

    def instants(self) -> list[dict[str, Any]]:
        """Instants of the contract; what lies on the host stands under ``host``."""
        found = []
        for name in dict.fromkeys(row.instant for row in self.rows):
            here = [row for row in self.rows if row.instant == name]
            total = next((r for r in here if r.place == "gpu" and r.category == ALL), None)
            found.append({
                "name": name,
                "predicted_bytes": total.predicted if total else 0,
                "measured_bytes": total.measured if total else 0,
                "categories": [_row(r) for r in here if r.place == "gpu" and r.category != ALL],
                "host": [_row(r) for r in here if r.place == "host" and r.category != ALL],
                **self.counters.get(name, {}),
            })  # fmt: skip
        return found

    def document(self) -> dict[str, Any]:
        """``dist-advisor/validation/1``."""
        run = self.estimate.run
        return {
            "schema": SCHEMA,
            "mode": self.mode,
            "strategy": self.strategy,
            "ranks": self.ranks,
            "device": self.device,
            "scaled": {name: list(pair) for name, pair in self.scaled.items()} or None,
            "status": self.status,
            "instants": self.instants(),
            "error": self.error,
            "versions": dict(self.versions),
            "model": {"name": run.model.name, "params": run.model.num_params},
            "workload": {
                "method": run.workload.method, "precision": run.workload.precision, "seq_len": run.workload.seq_len,
                "micro_batch": run.workload.micro_batch, "grad_accum": run.workload.grad_accum,
                "checkpointing": run.workload.checkpointing, "stack": run.workload.stack,
                "optimizer": run.settings.optimizer,
            },
            "process_bytes": self.process_bytes,
            "host_rss_bytes": list(self.rss_bytes),
            "time": {"step_seconds": self.step_seconds, "tokens_per_s_per_gpu": self.tokens_per_s},
            "failure": None if self.failure is None else {
                "kind": self.failure.kind, "reason": str(self.failure), "rank": self.failure.rank,
                "instant": self.failure.instant, "asked_bytes": self.failure.asked_bytes, "term": self.failure.term,
                "term_bytes": self.failure.term_bytes, "detail": self.failure.detail,
            },
            "why_mode": self.why,
            "notes": list(self.notes),
        }  # fmt: skip

    def _repr_html_(self) -> str:
        from io import StringIO

        from rich.console import Console

        from validate.table import draw

        page = Console(file=StringIO(), record=True, width=100)
        draw(page, self)
        return page.export_html(inline_styles=True)


def _row(row: Row) -> dict[str, Any]:
    return {
        "category": row.category,
        "predicted_bytes": row.predicted,
        "measured_bytes": row.measured,
        "agrees": row.agrees,
    }
