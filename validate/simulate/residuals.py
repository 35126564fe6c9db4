"""``python -m validate.simulate.residuals --model llama-8b --gpus 8xH100``: folded simulations beside whole ones.

Of each instant the bytes on the GPU from a few depths, extended, against every block run: what folding costs.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence

from estimators.errors import AdvisorError
from estimators.memory import resolve
from validate.simulate.simulation import Simulation, simulate

STRATEGIES = (
    "ddp", "fsdp-full-shard", "fsdp-shard-grad-op", "fsdp-hybrid-shard:shard=4", "fsdp1-full-shard",
    "fsdp1-shard-grad-op", "zero3",
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when no instant is further off than 0.2 %, 1 when one is, 2 when the question is wrong."""
    parser = argparse.ArgumentParser(prog="python -m validate.simulate.residuals", description=__doc__)
    parser.add_argument("--model", default="llama-8b")
    parser.add_argument("--gpus", default="8xH100")
    parser.add_argument("--strategy", action="append", help="default: every one that folds")
    parser.add_argument("--checkpointing", choices=("none", "full"), default="full")
    asked = parser.parse_args(arguments)
    warnings.filterwarnings("ignore")
    worst = 0.0
    print(
        f"{'strategy':<28}{'depths':<12}{'held out':>9}{'peak':>10}{'worst instant':>24}{'folded s':>10}{'whole s':>9}"
    )
    for strategy in asked.strategy or STRATEGIES:
        stack = "deepspeed" if strategy.startswith("zero") else "torch"
        try:
            run = resolve(asked.model, asked.gpus, strategy, "cpu", stack=stack, checkpointing=asked.checkpointing)
        except AdvisorError as wrong:
            print(wrong, file=sys.stderr)
            return 2
        short, whole = simulate(run, fold=True), simulate(run, fold=False)
        if short.residual is None:
            print(f"{strategy:<28}{'; '.join(short.notes)}", flush=True)
            continue
        peak = short.allocated / whole.allocated - 1
        name, off = largest_difference(short, whole)
        worst = max(worst, abs(off), abs(peak))
        print(f"{strategy:<28}{', '.join(map(str, short.ran)):<12}{short.residual:>9.3%}{peak:>+10.4%}"
              f"{f'{name} {off:+.4%}':>24}{short.seconds:>10.0f}{whole.seconds:>9.0f}", flush=True)  # fmt: skip
    return 0 if worst <= 0.002 else 1


def largest_difference(short: Simulation, whole: Simulation) -> tuple[str, float]:
    """The instant in which they are furthest apart, as a share of what the whole run held."""
    apart = {name: short.instants[name].total / made.total - 1 for name, made in whole.instants.items() if made.total}
    return max(apart.items(), key=lambda pair: abs(pair[1]))


if __name__ == "__main__":
    sys.exit(main())
