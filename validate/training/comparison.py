"""What a recorded run measured, beside the estimate of what really ran: its batch, its ranks, its device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from estimators.memory import Estimate, resolve
from estimators.units import gib

if TYPE_CHECKING:
    import os

    from validate.training.recording import Recording

SCHEMA = "dist-advisor/recording/1"
SAMPLED = (
    "a CPU has no counter of the largest: the heap was read at the borders of instants and blocks, so what lives "
    "inside one kernel or inside the optimizer's step is not seen; predictions of step leave its temporaries out"
)
WITH_CACHES = (
    "an engine of several ranks keeps buffers that no module names: those made before the recording began are not seen, "
    "and what kernels and threads keep on the heap after their first use, a few MB, counts as the run's"
)
UNMARKED = "reduce was not marked: what is reduced during backward stands in backward"


@dataclass(frozen=True)
class Peak:
    """One instant: bytes predicted (None without an estimate) and measured."""

    instant: str
    predicted: int | None
    measured: int
    reserved: int | None = None

    @property
    def error(self) -> float | None:
        """predicted / measured - 1."""
        return self.predicted / self.measured - 1 if self.predicted is not None and self.measured else None


@dataclass(frozen=True)
class Comparison:
    """Peaks of this rank by instant. ``counter``: allocated, heap or resident; ``own_share`` of the steps' time."""

    peaks: tuple[Peak, ...]
    counter: str
    steps: int
    recorded_steps: int
    step_seconds: float | None
    own_share: float
    estimate: Estimate | None
    notes: tuple[str, ...] = ()

    @property
    def error(self) -> float | None:
        """Of the largest instant: predicted / measured - 1."""
        if self.estimate is None or not self.peaks:
            return None
        return max(p.predicted or 0 for p in self.peaks) / max(p.measured for p in self.peaks) - 1

    def document(self) -> dict[str, Any]:
        """``dist-advisor/recording/1``."""
        return {
            "schema": SCHEMA,
            "strategy": self.estimate.strategy if self.estimate is not None else None,
            "counter": self.counter,
            "steps": self.steps,
            "recorded_steps": self.recorded_steps,
            "step_seconds": self.step_seconds,
            "own_share": self.own_share,
            "error": self.error,
            "instants": [
                {"name": p.instant, "predicted_bytes": p.predicted, "measured_bytes": p.measured,
                 "reserved_bytes": p.reserved}
                for p in self.peaks
            ],
            "notes": list(self.notes),
        }  # fmt: skip

    def __str__(self) -> str:
        head = f"{self.recorded_steps} of {self.steps} steps recorded ({self.counter} bytes of this rank)"
        if self.estimate is not None:
            run = self.estimate.run
            head = (
                f"{run.model.name or 'model'}, {self.estimate.strategy}, {run.workload.micro_batch} x "
                f"{run.workload.seq_len} tokens: {head}"
            )
        lines = [head, f"{'instant':<10}{'predicted':>16}{'measured':>16}{'difference':>16}"]
        for peak in self.peaks:
            predicted = "" if peak.predicted is None else f"{peak.predicted:,}"
            off = "" if peak.predicted is None else f"{peak.predicted - peak.measured:+,}"
            lines.append(f"{peak.instant:<10}{predicted:>16}{peak.measured:>16,}{off:>16}")
        if self.error is not None:
            lines.append(f"peak predicted {self.error:+.2%}")
        reserved = [p.reserved for p in self.peaks if p.reserved]
        if reserved:
            lines.append(f"reserved {gib(max(reserved))} GiB")
        if self.step_seconds:
            lines.append(f"{self.step_seconds:.4g} s a step, {self.own_share:.2%} of it spent on recording")
        lines.extend(f"note: {note}" for note in self.notes)
        return "\n".join(lines)


def estimate_of(predicted: str | os.PathLike[str] | Estimate | None) -> Estimate | None:
    """The estimate that somebody named: as it is, or of the folder that was emitted."""
    if predicted is None or isinstance(predicted, Estimate):
        return predicted
    import os

    from validate.question import read

    return Estimate(read(os.fspath(predicted)).run("cuda"))


def as_it_ran(given: Estimate, recording: Recording) -> tuple[Estimate, tuple[str, ...]]:
    """The same question for the device, the ranks and the batch that were there, and a note where they differ."""
    from estimators.values import replace
    from validate.scaling import on_ranks

    run, notes = given.run, []
    work, ranks = run.workload, _ranks()
    if ranks != run.ranks:
        notes.append(f"estimated for {run.ranks} ranks, ran on {ranks}: estimated again")
        run = on_ranks(run, ranks)
    batch = recording.batch or (work.micro_batch, work.seq_len)
    if batch != (work.micro_batch, work.seq_len):
        notes.append(f"estimated for {work.micro_batch} x {work.seq_len} tokens, the largest batch was "
                     f"{batch[0]} x {batch[1]}: estimated again")  # fmt: skip
        work = replace(work, micro_batch=batch[0], seq_len=batch[1])
    device = "cpu" if recording.device.type == "cpu" else "cuda"
    return Estimate(resolve(run.model, run.cluster, run.strategy, device, workload=work)), tuple(notes)


def _ranks() -> int:
    import torch.distributed as dist

    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def compared(recording: Recording) -> Comparison:
    """A recording as a table."""
    from estimators.result import INSTANTS
    from validate.compare import ALL, compare

    is_sampled = hasattr(recording.device, "sample")
    notes: list[str] = [SAMPLED] if is_sampled else []
    notes += [] if getattr(recording.device, "knows_all", True) else [WITH_CACHES]
    estimate, predicted = None, dict[str, int]()
    measured = {name: recording.peaks[name] for name in INSTANTS if name in recording.peaks}
    if recording.predicted is not None:
        estimate, more = as_it_ran(recording.predicted, recording)
        known = {i.name for i in estimate.instants}
        asked = {name: {"gpu": {"temporaries": 0}} for name in (*measured, "reduce") if name in known}
        rows = compare(asked, estimate)
        predicted = {r.instant: r.predicted for r in rows if r.category == ALL and r.place == "gpu"}
        if is_sampled and "step" in predicted:
            predicted["step"] -= sum(r.predicted for r in rows if (r.instant, r.category) == ("step", "temporaries"))
        if "reduce" not in measured and "reduce" in predicted and "backward" in predicted:
            predicted["backward"] = max(predicted["backward"], predicted["reduce"])
            notes += [UNMARKED] if estimate.run.ranks > 1 else []
        notes = [*more, *notes]
    if not recording.steps:
        notes.append("no optimizer step was seen; name the optimizer, or call begin('step') and stepped()")
    peaks = tuple(
        Peak(name, predicted.get(name), size, recording.reserved.get(name)) for name, size in measured.items()
    )
    timed = recording.steps - 1
    return Comparison(
        peaks, getattr(recording.device, "counter", "allocated"), recording.steps, recording.recorded_steps,
        recording.seconds / timed if timed > 0 else None, recording.own_share, estimate, tuple(notes),
    )  # fmt: skip
