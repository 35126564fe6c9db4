"""How far an answer can be trusted: how this engine, method and stack did on measured runs, where they were scored."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import estimators
from estimators.memory import Estimate

FILE = os.path.join(os.path.dirname(estimators.__file__), "data", "accuracy.json")
NOT_SCORED = "not yet scored against measured runs"


@lru_cache(maxsize=1)
def table() -> tuple[Mapping[str, Any], ...]:
    """Rows ``{"engine", "method", "stack", "n", "p90"}`` of the published scores; empty where there are none.

    ``method`` or ``stack`` null means all of them; ``p90`` is a fraction of the measured bytes.
    """
    try:
        with open(FILE, encoding="utf-8") as file:
            rows = json.load(file).get("rows", [])
    except (OSError, ValueError, AttributeError):
        return ()
    return tuple(r for r in rows if isinstance(r, dict) and {"engine", "n", "p90"} <= r.keys())


def trust(estimate: Estimate) -> str:
    """One sentence: on how many cases this engine x method x stack was checked, and how well."""
    work = estimate.run.workload
    engine = estimate.run.strategy.engine
    what = f"{engine} x {work.method} x {work.stack}"
    best: Mapping[str, Any] | None = None
    for row in table():
        fits = row["engine"] == engine and row.get("method") in (None, work.method)
        fits = fits and row.get("stack") in (None, work.stack)
        if fits and (best is None or _detail(row) > _detail(best)):
            best = row
    if best is None:
        return f"{what}: {NOT_SCORED}"
    scope = " x ".join(str(best[k]) for k in ("engine", "method", "stack") if best.get(k))
    if best["n"] == 1:
        return f"{what}: checked as {scope} on 1 measured case, within {100 * best['p90']:.0f} %"
    return f"{what}: checked as {scope} on {best['n']} measured cases, 90 % of them within {100 * best['p90']:.0f} %"


def _detail(row: Mapping[str, Any]) -> int:
    return sum(row.get(key) is not None for key in ("method", "stack"))
