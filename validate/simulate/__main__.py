"""``python -m validate.simulate --model llama-8b --gpus 8xH100 --strategy zero3``: measured beside predicted."""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Sequence

from estimators.errors import AdvisorError
from estimators.memory import Estimate, resolve
from estimators.units import gib
from validate.compare import Row, compare, peak_error, status


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when it agrees, 1 when it differs, 2 when the question is wrong, 3 when it cannot be simulated."""
    asked = _parser().parse_args(arguments)
    stack = asked.stack or ("deepspeed" if asked.strategy.startswith("zero") else "torch")
    fields = {name: getattr(asked, name) for name in ("method", "checkpointing", "precision", "optimizer", "seq_len",
                                                      "micro_batch", "grad_accum")}  # fmt: skip
    try:
        run = resolve(asked.model, asked.gpus, asked.strategy, asked.device, stack=stack, **fields)
    except AdvisorError as wrong:
        print(wrong, file=sys.stderr)
        return 2
    warnings.filterwarnings("ignore")
    from validate.depth import at_depth
    from validate.simulate.simulation import simulate

    try:
        found = simulate(run, layers=asked.layers, fold=False if asked.whole else None)
    except NotImplementedError as reason:
        print(reason, file=sys.stderr)
        return 3
    estimate = Estimate(at_depth(run, found.layers))
    measured = {name: {"gpu": c.gpu, "host": c.host} for name, c in found.instants.items()}
    rows, peak = compare(measured, estimate), peak_error(measured, estimate)
    verdict = status(rows, peak)
    if asked.format == "json":
        print(json.dumps(_as_json(estimate, rows, peak, verdict), indent=1))
    else:
        _print_table(rows)
        how = f"depths {', '.join(map(str, found.ran))}" + (
            f" folded to {found.layers}, residual {found.residual:.4%}" if found.residual is not None else ""
        )
        print(f"{estimate.strategy}: {verdict}; measured peak {gib(found.allocated)} GiB at {found.peak}, predicted "
              f"{peak:+.2%}; {how}; {found.seconds:.0f} s ({found.cpu_seconds:.0f} s of CPU), "
              f"{found.rss_bytes / 2**20:.0f} MiB of RAM")  # fmt: skip
        for note in found.notes:
            print(note, file=sys.stderr)
    return 0 if verdict == "agrees" else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m validate.simulate", description=__doc__)
    for name in ("model", "gpus", "strategy"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--method", choices=("full", "lora"), default="full")
    parser.add_argument("--checkpointing", choices=("none", "full"), default="full")
    parser.add_argument("--precision", default="bf16-mixed")
    parser.add_argument("--optimizer", help="adamw, adamw-fused, sgd, sgd-momentum; default that of the stack")
    parser.add_argument("--stack", help="default: deepspeed for ZeRO, else torch")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu",
                        help="whose defaults are resolved; the simulated device is a CPU")  # fmt: skip
    for name, default in (("seq-len", 2048), ("micro-batch", 1), ("grad-accum", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--layers", type=int, help="run so many blocks; default all")
    parser.add_argument("--whole", action="store_true", help="run every block, fold nothing")
    parser.add_argument("--format", choices=("table", "json"), default="table")
    return parser


def _print_table(rows: Sequence[Row]) -> None:
    print(f"{'instant':<9}{'place':<6}{'category':<13}{'predicted':>18}{'measured':>18}{'difference':>17}{'error':>9}")
    for row in rows:
        error = f"{row.error:>9.2%}" if row.measured else f"{'':>9}"
        print(f"{row.instant:<9}{row.place:<6}{row.category:<13}{row.predicted:>18,}{row.measured:>18,}"
              f"{row.predicted - row.measured:>17,}{error}{'' if row.agrees else '  differs'}")  # fmt: skip


def _as_json(estimate: Estimate, rows: Sequence[Row], peak: float, verdict: str) -> dict[str, object]:
    """The contract's validation object; host rows stand under ``host``."""
    instants = []
    for name in dict.fromkeys(row.instant for row in rows):
        here = [row for row in rows if row.instant == name and row.place == "gpu"]
        total = next(row for row in here if row.category == "all")
        instants.append({
            "name": name, "predicted_bytes": total.predicted, "measured_bytes": total.measured,
            "categories": [{"category": r.category, "predicted_bytes": r.predicted, "measured_bytes": r.measured}
                           for r in here if r is not total],
            "host": [{"category": r.category, "predicted_bytes": r.predicted, "measured_bytes": r.measured}
                     for r in rows if r.instant == name and r.place == "host"],
        })  # fmt: skip
    return {
        "schema": "dist-advisor/validation/1", "mode": "simulate", "strategy": estimate.strategy,
        "ranks": estimate.run.ranks, "device": "fake", "scaled": None, "status": verdict, "instants": instants,
        "error": peak, "versions": dict(estimate.run.settings.versions),
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
