"""Fits the constants of ``estimators/time/constants.py`` that are marked with a ``Fit``, and scores them held out.

    python docs/evidence/time_fit.py [cases.jsonl ...]

Rows: dense full training under FSDP or DDP, or on one GPU, of 1B parameters and up, on cards whose rates are known;
without files, those of ``validate/data``. Robust least squares on the logarithm of time, each group of rows with the
weight of one. One model size at a time is left out of the fit and predicted. Needs scipy and numpy.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from dataclasses import replace
from statistics import mean

import numpy as np
from scipy.optimize import least_squares

from estimators.time import Unknown, constants, phases
from estimators.time.amounts import amounts
from estimators.time.card import rates
from estimators.time.network import links
from validate.speed_cases import DENSE, Case, read_cases

FITTED = ("Ampere", "Hopper", "ACTIVATION_MOVES", "COMPILED_MOVES", "INSIDE_COST", "BETWEEN_COST")
BOUNDS = ([0.1, 0.05, 1.0, 0.5, 0.0, 0.0], [0.8, 0.8, 12.0, 10.0, 1.0, 1.0])
KINDS = (DENSE, "dense, one GPU")


def put(values: np.ndarray) -> None:
    """Write values into the table and forget what was derived from it."""
    for name, value in zip(FITTED, values, strict=True):
        if name in constants.ATTENTION_SHARE:
            constants.ATTENTION_SHARE[name] = replace(constants.ATTENTION_SHARE[name], value=float(value))
        else:
            setattr(constants, name, replace(getattr(constants, name), value=float(value)))
    phases.costs.cache_clear()
    rates.cache_clear()


def current() -> np.ndarray:
    table = constants.ATTENTION_SHARE
    return np.array([table[n].value if n in table else getattr(constants, n).value for n in FITTED])


def predicted(case: Case) -> float:
    """Seconds of a step under the table as it stands."""
    run = case.run
    card = rates(run.cluster.gpu, run.settings.compute_dtype)
    assert not isinstance(card, Unknown)
    return sum(phases.part_seconds(WORK[case.id], card, links(run.cluster, card), 1))


def errors(cases: list[Case]) -> np.ndarray:
    """Predicted tokens/s over measured - 1."""
    return np.array([WORK[c.id].tokens / predicted(c) / c.tokens_per_s - 1 for c in cases])


def fit(cases: list[Case]) -> np.ndarray:
    counts = defaultdict(int)
    for case in cases:
        counts[case.group] += 1
    weights = np.array([counts[c.group] ** -0.5 for c in cases])

    def residuals(values: np.ndarray) -> np.ndarray:
        put(values)
        return weights * np.log1p(errors(cases))

    return least_squares(residuals, START, bounds=BOUNDS, loss="soft_l1", f_scale=0.02, diff_step=1e-3).x


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
    cases = chosen(sys.argv[1:])
    score("table as it stands", cases, errors(cases))
    values = fit(cases)
    put(values)
    print("fitted on all:", {n: round(float(v), 3) for n, v in zip(FITTED, values, strict=True)})
    score("in sample", cases, errors(cases))
    held, order = [], []
    for size in sorted({c.size for c in cases}):
        out = [c for c in cases if c.size == size]
        put(fit([c for c in cases if c.size != size]))
        held += list(errors(out))
        order += out
        score(f"held out: {size}", out, errors(out))
    score("one size held out at a time", order, np.array(held))
    dense = [(c, e) for c, e in zip(order, held, strict=True) if c.kind == DENSE]
    score("of these FSDP/DDP", [c for c, _ in dense], np.array([e for _, e in dense]))
    for case, error in sorted(zip(order, held, strict=True), key=lambda x: -abs(x[1]))[:15]:
        print(f"  {error:+6.1%}  {case.id:12s} {case.group}")


WORK: dict[str, object] = {}
START = current()

if __name__ == "__main__":
    main()
