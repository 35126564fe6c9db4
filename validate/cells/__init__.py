"""Cells: tiny models run through the real engines over gloo, and what the estimators say of the same.

A ``Cell`` is one configuration. Measuring it starts the engine itself and reads live bytes by category at each
instant; predicting it asks ``estimators`` about the same live module. Neither side knows the other's numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from estimators.cluster import Cluster, Gpu
from estimators.engines import hold
from estimators.model.spec import ModelSpec
from estimators.result import INSTANTS, Term
from estimators.run import Run
from estimators.stacks import settle
from estimators.strategy import Strategy, parse_strategy
from estimators.workload import workload
from validate.cells.ranks import Failure, run_on_ranks

ByCategory = dict[str, int]
Measured = dict[str, ByCategory]  # instant -> category -> bytes


@dataclass(frozen=True)
class Cell:
    """One configuration: a config dictionary, how many ranks, a strategy in the contract's spelling, a workload."""

    id: str
    config: Mapping[str, Any]
    ranks: int
    strategy: str
    workload: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)  # knobs beside those that the spelling names

    @property
    def parsed(self) -> Strategy:
        strategy = parse_strategy(self.strategy)
        return replace(strategy, options={**strategy.options, **self.options})

    @property
    def engine(self) -> str:
        return self.parsed.engine


@dataclass(frozen=True)
class Row:
    """One number of one cell: predicted and measured bytes of a category at an instant."""

    cell: str
    instant: str
    category: str
    predicted: int
    measured: int

    @property
    def difference(self) -> int:
        return self.predicted - self.measured

    @property
    def relative(self) -> float:
        """Difference as a share of the measured bytes; infinite where nothing was measured."""
        return self.difference / self.measured if self.measured else float("inf") if self.difference else 0.0


@dataclass(frozen=True)
class Outcome:
    """What a measuring function answers on each rank: live bytes, and the spec of the module that was run."""

    measured: Measured
    spec: ModelSpec


def run_of(cell: Cell, spec: ModelSpec) -> Run:
    """The cell as the estimators see it: one node without accelerators."""
    cluster = Cluster(Gpu("cpu", "CPU", 2**34), gpus_per_node=cell.ranks)
    strategy, asked = cell.parsed, workload(**{"stack": "torch", **cell.workload})
    return Run(spec, cluster, asked, strategy, settle(spec, cluster, asked, strategy, "cpu"))


def predict(cell: Cell, spec: ModelSpec) -> Measured:
    """Bytes by instant and category of one rank; host terms are a node's, so they are shared out."""
    run = run_of(cell, spec)
    found: Measured = {}
    for instant, terms in hold(run).items():
        sums = found.setdefault(instant, {})
        for term in terms:
            category = "nvme" if term.place == "nvme" else term.category
            sums[category] = sums.get(category, 0) + _per_rank(term, cell.ranks)
    return found


def _per_rank(term: Term, ranks: int) -> int:
    return term.bytes if term.place == "gpu" else term.bytes // ranks


def measure(
    cells: Sequence[Cell], job: Callable[[Cell], Outcome], seconds: float = 120.0
) -> dict[str, Outcome | Failure]:
    """Run the cells, those of one number of ranks in one process group; of each the rank that needs most."""
    found: dict[str, Outcome | Failure] = {}
    for ranks in sorted({cell.ranks for cell in cells}):
        group = [cell for cell in cells if cell.ranks == ranks]
        jobs = [_bound(job, cell) for cell in group]
        for cell, answer in zip(group, run_on_ranks(jobs, ranks, seconds), strict=True):
            found[cell.id] = answer if isinstance(answer, Failure) else max(answer, key=_needs)
    return found


def prepare(cells: Sequence[Cell]) -> None:
    """Import before the fork what the ranks would each import again."""
    from importlib import import_module

    names = {f"transformers.models.{cell.config['model_type']}" for cell in cells}
    names |= {f"{name}.modeling_{name.rpartition('.')[2]}" for name in names}
    names |= {"torch.distributed.fsdp"} | ({"peft"} if any("lora_rank" in c.workload for c in cells) else set())
    if any(cell.engine == "deepspeed" for cell in cells):
        names.add("deepspeed")
    for name in sorted(names):
        import_module(name)


def _bound(job: Callable[[Cell], Outcome], cell: Cell) -> Callable[[], Outcome]:
    return lambda: job(cell)


def _needs(outcome: Outcome) -> int:
    return max(sum(instant.values()) for instant in outcome.measured.values())


def compare(cell: Cell, outcome: Outcome) -> list[Row]:
    """A row for each instant and category that either side has."""
    predicted = predict(cell, outcome.spec)
    if "loss" in predicted and "loss" not in outcome.measured:  # a measured forward ends with the loss
        predicted["forward"] = max(predicted["forward"], predicted["loss"], key=lambda found: sum(found.values()))
    rows = []
    for instant in INSTANTS:
        if instant in outcome.measured:
            ours, theirs = predicted.get(instant, {}), outcome.measured[instant]
            for category in sorted({*ours, *theirs}):
                rows.append(Row(cell.id, instant, category, ours.get(category, 0), theirs.get(category, 0)))
    return rows


def cells_of(engines: Iterable[str] = (), nvme: bool = False) -> list[tuple[list[Cell], Callable[[Cell], Outcome]]]:
    """The lists of cells with the function that measures each; an engine's module is imported only when asked for.

    ``nvme``: those alone that swap to a disk, whose operator compiles for minutes the first time.
    """
    from importlib import import_module

    wanted = set(engines)
    found = []
    for module, covers in (("torch_cells", {"torch", "ddp", "fsdp1", "fsdp2"}), ("deepspeed_cells", {"deepspeed"})):
        if not wanted or wanted & covers:
            cells_module = import_module(f"{__name__}.{module}")
            cells = getattr(cells_module, "NVME", []) if nvme else cells_module.CELLS
            listed = [cell for cell in cells if not wanted or cell.engine in wanted]
            found.append((listed, cells_module.run))
    return found
