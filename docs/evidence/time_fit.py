"""Fits the constants of ``estimators/time/constants.py`` that are marked with a ``Fit``, and scores them held out.

    python docs/evidence/time_fit.py [cases.jsonl ...] [--write validate/data/speed_fits.json]

Rows: dense full training under FSDP or DDP, or on one GPU, of 1B parameters and up, on cards whose rates are known;
without files, those of ``validate/data``. Robust least squares on the logarithm of time, each group of rows with the
weight of one. One model size at a time is left out of the fit and predicted. Needs scipy and numpy.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from statistics import mean

import numpy as np
from scipy.optimize import least_squares

from estimators.time import Unknown
from estimators.time.amounts import Amounts, amounts
from estimators.time.card import rates
from estimators.time.constants import FITTED, fitted, replaced
from estimators.time.network import links
from estimators.time.phases import part_seconds
from validate.speed_cases import DENSE, ONE_GPU, Case, read_cases

BOUNDS = ([0.1, 0.05, 1.0, 0.5, 0.0, 0.0], [0.8, 0.8, 12.0, 10.0, 1.0, 1.0])
KINDS = (DENSE, ONE_GPU)


def predicted(case: Case) -> float:
    """Seconds of a step under the table as it stands."""
    run = case.run
    card = rates(run.cluster.gpu, run.settings.compute_dtype)
    assert not isinstance(card, Unknown)
    return sum(part_seconds(WORK[case.id], card, links(run.cluster, card), 1))


def errors(cases: list[Case]) -> np.ndarray:
    """Predicted tokens/s over measured - 1."""
    return np.array([WORK[c.id].tokens / predicted(c) / c.tokens_per_s - 1 for c in cases])


def fit(cases: list[Case]) -> dict[str, float]:
    """The values that suit some cases best."""
    counts = defaultdict(int)
    for case in cases:
        counts[case.group] += 1
    weights = np.array([counts[c.group] ** -0.5 for c in cases])

    def residuals(values: np.ndarray) -> np.ndarray:
        with replaced(dict(zip(FITTED, values, strict=True))):
            return weights * np.log1p(errors(cases))

    start = list(fitted().values())
    found = least_squares(residuals, start, bounds=BOUNDS, loss="soft_l1", f_scale=0.02, diff_step=1e-3).x
    return {name: round(float(value), 4) for name, value in zip(FITTED, found, strict=True)}


def score(name: str, cases: list[Case], found: np.ndarray) -> None:
    groups = defaultdict(list)
    for case, error in zip(cases, found, strict=True):
        groups[case.group].append(abs(error))
    by_group, size = mean(mean(g) for g in groups.values()), np.abs(found)
    print(f"{name:34s} n {len(cases):3d}  MAPE by group {by_group:5.1%}  by row {size.mean():5.1%}  "
          f"bias {found.mean():+5.1%}  p90 {np.quantile(size, 0.9):5.1%}  worst {size.max():5.1%}")  # fmt: skip


def chosen(paths: list[str]) -> list[Case]:
    found = [c for path in paths or [None] for c in read_cases(path) if c.obstacle() is None and c.kind in KINDS]
    known = []
    for case in found:
        run = case.run
        if not isinstance(rates(run.cluster.gpu, run.settings.compute_dtype), Unknown):
            WORK[case.id] = amounts(run)
            known.append(case)
    return known


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("cases", nargs="*", help="jsonl files; those of validate/data when none is given")
    arguments.add_argument("--write", metavar="FILE", help="write the values of each fit, as validate/data has them")
    parsed = arguments.parse_args()
    cases = chosen(parsed.cases)
    score("table as it stands", cases, errors(cases))
    values = fit(cases)
    print("fitted on all:", values)
    with replaced(values):
        score("in sample", cases, errors(cases))
    held, order, table = [], [], {"all": values}
    for size in sorted({c.size for c in cases}):
        out = [c for c in cases if c.size == size]
        table[size] = fit([c for c in cases if c.size != size])
        with replaced(table[size]):
            held += list(errors(out))
            score(f"held out: {size}", out, errors(out))
        order += out
    score("one size held out at a time", order, np.array(held))
    dense = [(c, e) for c, e in zip(order, held, strict=True) if c.kind == DENSE]
    score("of these FSDP/DDP", [c for c, _ in dense], np.array([e for _, e in dense]))
    if parsed.write:
        with open(parsed.write, "w", encoding="utf-8") as file:
            file.write(json.dumps(table, indent=1) + "\n")


WORK: dict[str, Amounts] = {}

if __name__ == "__main__":
    main()
