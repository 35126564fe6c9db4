"""``dist-advisor validate --calibrate``: this machine's rates and overheads, measured and kept for later answers."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from selector.cli.output import check_format, emit

if TYPE_CHECKING:
    from rich.console import Console


def calibrate(parsed: argparse.Namespace) -> int:
    """Measure, write the profile (to ``--out`` where it is given), and say what is in it."""
    from estimators.calibration import QUANTITIES
    from selector.cli.parser import calibration_file
    from validate import calibrate as machine

    path = parsed.out or calibration_file()
    parsed.out = None
    check_format(parsed)
    found = machine.calibrate(path)
    rows = [
        {"quantity": name, "low": m.low, "value": m.value, "high": m.high, "n": m.n, "unit": QUANTITIES[name][0]}
        for name, m in found.values.items()
    ]
    document = {"schema": "dist-advisor/calibration/1", "file": path, "cards": {found.gpu: found.entry()},
                "left_out": dict(found.left_out)}  # fmt: skip
    notes = [f"written to {path}; --no-calibration leaves it out of an answer"]
    notes += [f"{name} was not measured: {why}" for name, why in found.left_out.items()]

    def draw(console: Console) -> None:
        from rich.table import Table

        table = Table(title=f"{found.gpu}, {found.date}", box=None, pad_edge=False, title_justify="left")
        for title in ("quantity", "low", "value", "high", "unit"):
            table.add_column(title, justify="left" if title in ("quantity", "unit") else "right")
        for row in rows:
            ends = (f"{row[key]:.4g}" for key in ("low", "value", "high"))
            table.add_row(QUANTITIES[str(row["quantity"])][1], *ends, str(row["unit"]))
        console.print(table)

    emit(parsed, document, rows, draw, notes)
    return 0
