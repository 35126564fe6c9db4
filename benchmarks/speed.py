"""How long an answer takes: ``python benchmarks/speed.py``.

Cold: whole processes, medians of 15, beside a bare ``python -c pass`` of the same run. Warm: estimates a second in one
process for a 70B model, each with another micro-batch so that nothing is answered from memory of the same question.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RUNS = 15
QUESTION = ["--model", "llama-8b", "--gpus", "4xA10"]
LIMITS = {"estimate --format json": 10.0, "estimate (table)": 16.0}


def cold(arguments: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], cwd=ROOT, check=True, capture_output=True)
    return time.perf_counter() - start


def medians(runs: int = RUNS) -> dict[str, float]:
    """Seconds of each kind of process, in turn so that drift of the machine hits all alike."""
    program = str(ROOT / "dist_advisor.py")
    kinds = {
        "python -c pass": ["-c", "pass"],
        "estimate --format json": [program, "estimate", *QUESTION, "--format", "json"],
        "estimate (table)": [program, "estimate", *QUESTION],
    }
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(runs + 1):
        for kind, arguments in kinds.items():
            times[kind].append(cold(arguments))
    return {kind: statistics.median(found[1:]) for kind, found in times.items()}


def rate(read: Callable[[object], object], seconds: float = 1.0) -> float:
    """Estimates a second: Llama-3.1-70B on 64 GPUs, ZeRO-3 and FSDP2 in turn."""
    from estimators import estimate, parse_cluster, parse_strategy, resolve_model

    model, cluster = resolve_model("llama-70b"), parse_cluster("8x8xH100")
    strategies = [parse_strategy(name) for name in ("zero3", "fsdp-full-shard", "zero2+optimizer@cpu", "ddp")]
    for strategy in strategies:
        read(estimate(model, cluster, strategy))
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        batch, sequence = 1 + count % 64, 512 * (1 + count // 64 % 64)
        read(estimate(model, cluster, strategies[count % 4], micro_batch=batch, seq_len=sequence))
        count += 1
    return count / (time.perf_counter() - start)


def answer(found: object) -> object:
    return found.gpu, found.host, found.verdict, found.peak.name  # type: ignore[attr-defined]


def every_term(found: object) -> object:
    answer(found)
    return [(t.name, t.bytes, t.formula) for i in found.instants for t in i.terms]  # type: ignore[attr-defined]


def main() -> None:
    sys.path.insert(0, str(ROOT))
    times = medians()
    bare = times["python -c pass"]
    for kind, seconds in times.items():
        limit = f"  (at most {LIMITS[kind]:g} x)" if kind in LIMITS else ""
        print(f"{kind:26} {1000 * seconds:7.1f} ms  {seconds / bare:5.1f} x{limit}")
    rates = {"GPU, host, verdict, peak": rate(answer), "every term": rate(every_term)}
    for what, value in rates.items():
        print(f"{what:26} {value:9,.0f} estimates a second")
    if "--json" in sys.argv:
        print(json.dumps({"seconds": times, "per_second": rates}))


if __name__ == "__main__":
    main()
