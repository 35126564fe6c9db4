"""Where the constants of ``estimators/runtime.py`` for the allocator's reserve come from.

    python docs/evidence/runtime.py memory_cases.jsonl

Prints, for each engine, the low, expected and high ratio (reserved - allocated) / allocated: the 10 %, 50 % and 90 %
quantiles over measured runs in which every source, model and method counts once. Two kinds of runs are read:

* rows of the file with ``allocated_gib`` (or ``active_gib``) and ``reserved_gib``;
* rows with ``allocated_gib`` and ``process_gib``, the expected context and communicators taken off. A row whose process
  fills more than 93 % of its card says nothing of what the allocator would have liked to keep, and is left out.

Beside them stand published pairs, written below with their source. The last lines say how well process memory is then
predicted for models that were left out when the ratios were taken, beside the same without a reserve.

Printed on 365 cases, 2026-09:

    torch      low 0.079  expected 0.156  high 0.410  runs 26  groups 8
    fsdp1      low 0.136  expected 0.337  high 0.624  runs 39  groups 15
    fsdp2      low 0.200  expected 0.200  high 0.360  runs 2  groups 1
    deepspeed  low 0.008  expected 0.008  high 0.014  runs 2  groups 1
    process memory, held-out groups: 12.0%; without a reserve 18.9%

Every row with process memory is of one family of benchmarks (Hugging Face Trainer, A100-80GB, torch 2.4), whose
allocated peak leaves loading out, so that the ratios of torch and fsdp1 lean to the high side.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from estimators.cluster import parse_cluster
from estimators.runtime import communicator_range, context_range
from estimators.strategy import parse_strategy
from estimators.units import GIB

FULL = 0.93  # share of the card above which the allocator had to give blocks back
QUANTILES = (0.1, 0.5, 0.9)

# engine, source, allocated (or active) and reserved in one unit
PUBLISHED = (
    ("fsdp1", "FSDP paper (arXiv 2304.11277), T5-11B", ((27, 39), (20, 26), (46, 58), (40, 47))),
    ("fsdp1", "FSDP paper (arXiv 2304.11277), GPT-175B", ((47, 78), (31, 57), (54, 80), (37, 67))),
    ("fsdp1", "TensorAuto/OpenTau pull request 273", ((43.9, 70.1),)),
    ("fsdp1", "pytorch/torchtitan pull request 165, active", ((1, 1.36), (1, 1.27))),
    ("fsdp2", "pytorch/torchtitan pull request 165, active", ((1, 1.36), (1, 1.20))),
    # ZeRO-2; the second pair is its "93 % of 80 GB, about 1 GB apart"
    ("deepspeed", "TensorAuto/OpenTau pull request 273", ((36.2, 36.5), (73, 74))),
    ("torch", "pytorch/pytorch issue 40989", ((15006, 16726), (17402, 19354))),
)  # fmt: skip


@dataclass(frozen=True)
class Observation:
    """One run: GiB of tensors, of the allocator, and of what is outside (0 where reserved was read itself)."""

    engine: str
    group: str
    allocated: float
    total: float
    outside: float
    capacity: float

    @property
    def ratio(self) -> float:
        return (self.total - self.outside - self.allocated) / self.allocated

    @property
    def is_full(self) -> bool:
        return self.total > FULL * self.capacity


def observations(path: Path) -> list[Observation]:
    """The rows of a file of measured cases that have both figures, and the published pairs."""
    found = [
        Observation(engine, source, allocated, reserved, 0, float("inf"))
        for engine, source, pairs in PUBLISHED
        for allocated, reserved in pairs
    ]
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        measured, strategy = row["measured"], row["strategy"]
        allocated = measured.get("allocated_gib", measured.get("active_gib"))
        if strategy is None or allocated is None or not {"reserved_gib", "process_gib"} & set(measured):
            continue
        count, nodes = row["cluster"]["gpus"], row["cluster"]["nodes"]
        cluster = parse_cluster(f"{nodes}x{count // nodes}x{row['cluster']['gpu']}")
        reserved = measured.get("reserved_gib")
        outside = context_range(cluster.gpu).expected
        outside += communicator_range(cluster, count).expected if count > 1 else 0
        found.append(
            Observation(
                parse_strategy(strategy).engine, row["group"], allocated, reserved or measured["process_gib"],
                0 if reserved else outside, cluster.gpu.memory_bytes / GIB,
            )
        )  # fmt: skip
    return found


def quantile(weighted: list[tuple[float, float]], share: float) -> float:
    """Smallest value at which the weight below and at it reaches ``share`` of all."""
    total, below = sum(w for _, w in weighted), 0.0
    for value, weight in sorted(weighted):
        below += weight
        if below >= share * total - 1e-9:
            return value
    raise ValueError("nothing was observed")


def ratios(runs: list[Observation]) -> tuple[float, ...]:
    """Low, expected and high ratio; each group has weight 1."""
    groups: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        groups[run.group].append(run.ratio)
    weighted = [(ratio, 1 / len(found)) for found in groups.values() for ratio in found]
    return tuple(quantile(weighted, share) for share in QUANTILES)


def held_out(runs: list[Observation], with_reserve: bool) -> float:
    """Mean over groups of the mean |error| of process memory, the group's own runs not used for the ratio."""
    errors: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        if not run.outside:
            continue
        others = [o for o in runs if o.engine == run.engine and o.group != run.group and not o.is_full]
        extra = ratios(others)[1] * run.allocated if with_reserve else 0
        left = max(0.0, run.capacity - run.allocated - run.outside)
        errors[run.group].append(abs((run.allocated + run.outside + min(extra, left)) / run.total - 1))
    return mean(mean(found) for found in errors.values())


def main() -> None:
    runs = observations(Path(sys.argv[1]))
    for engine in ("torch", "fsdp1", "fsdp2", "deepspeed"):
        used = [r for r in runs if r.engine == engine and not r.is_full]
        low, expected, high = ratios(used)
        groups = len({r.group for r in used})
        print(f"{engine:10} low {low:.3f}  expected {expected:.3f}  high {high:.3f}  runs {len(used)}  groups {groups}")
    print(f"process memory, held-out groups: {held_out(runs, True):.1%}; without a reserve {held_out(runs, False):.1%}")


if __name__ == "__main__":
    main()
