"""How long an answer takes, beside the limits that hold: ``python benchmarks/speed.py``.

Cold: whole processes, medians of 15, beside a bare ``python -c pass`` of the same run. Python may keep its bytecode
(``PYTHONDONTWRITEBYTECODE`` is taken away), as it does where a package is installed. Warm: in one process, each question
with another batch and sequence, so that nothing is answered from memory of the same question; seconds of the processor, so
that other programs do not count. ``--quick`` leaves the sweep out; ``--json`` prints the figures once more.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import count, cycle
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from estimators import Cluster, ModelSpec, Strategy

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = str(ROOT / "dist_advisor.py")
RUNS = 15
WARM = (256, 320, 384)  # tokens of the questions before the clock starts: the first few work out what the rest share
QUESTION = ["--model", "llama-8b", "--gpus", "4xA10"]
SWEPT = """models: [llama-8b, llama-70b, qwen2.5-7b, qwen3-30b-a3b, mistral-7b, gemma-2-9b, phi-4, gpt2, falcon-7b, opt-1.3b]
gpus: [4xA10, 8xA100-80GB, 8xH100, 2x8xH100, 4xL4, 2xRTX4090, 8xA100-40GB, 8x8xH100, 4xV100, 8xMI300X]
workload: {seq_len: [512, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384], micro_batch: [1, 2, 3, 4, 5, 6, 7, 8, 12, 16]}
"""  # 10 x 10 x 10 x 10


class Line(NamedTuple):
    """One row: what was measured, and what it may be at most (or must be at least)."""

    what: str
    value: float
    unit: str
    limit: float
    least: bool = False

    @property
    def holds(self) -> bool:
        return self.value >= self.limit if self.least else self.value <= self.limit

    def text(self) -> str:
        shown = f"{self.value:,.0f}" if self.value >= 100 else f"{self.value:.2f}"
        limit = f"{'at least' if self.least else 'at most'} {self.limit:,g}"
        return f"{self.what:58} {shown:>9} {self.unit:12} {limit:16} {'holds' if self.holds else 'MISSED'}"


def cold(arguments: list[str]) -> float:
    """Seconds of one process."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], cwd=ROOT, check=True, capture_output=True, env=environment)
    return time.perf_counter() - start


def medians(runs: int = RUNS) -> dict[str, float]:
    """Seconds of each kind of process, in turn so that drift of the machine hits all alike."""
    kinds = {
        "bare": ["-c", "pass"],
        "json": [PROGRAM, "estimate", *QUESTION, "--format", "json"],
        "table": [PROGRAM, "estimate", *QUESTION],
        "recommend": [PROGRAM, "recommend", "--model", "llama-8b", "--gpus", "8xH100"],
    }
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(runs + 1):
        for kind, arguments in kinds.items():
            times[kind].append(cold(arguments))
    return {kind: statistics.median(found[1:]) for kind, found in times.items()}


def sizes() -> Iterator[tuple[int, int]]:
    """Micro-batches and sequence lengths, none twice."""
    for number in count():
        yield 1 + number % 64, 64 * (8 + number // 64)


def kinds() -> tuple[ModelSpec, list[tuple[Cluster, Strategy]]]:
    """Llama-3.1-70B with every strategy of the default list on clusters of 8 to 512 GPUs of four cards."""
    from estimators import parse_cluster, parse_strategy, resolve_model
    from estimators.memory import default_strategies

    clusters = map(parse_cluster, ("8xH100", "2x8xA100-80GB", "4x8xH200", "8x8xH100", "16x8xB200", "64x8xH100"))
    asked = [(where, parse_strategy(how)) for where in clusters for how in default_strategies(where)]
    return resolve_model("llama-70b"), asked


def rate(read: Callable[[object], object], size: Iterator[tuple[int, int]], seconds: float = 2.0) -> float:
    """Estimates a second of a 70B: strategy, cluster, batch and sequence differ from one to the next, as in a sweep, and
    no question is asked twice. What a strategy on a cluster is at any batch and sequence was worked out before."""
    from estimators import estimate

    model, asked = kinds()
    for tokens in WARM:
        for cluster, strategy in asked:
            read(estimate(model, cluster, strategy, seq_len=tokens))
    turns, done, start = cycle(asked), 0, time.process_time()
    while time.process_time() - start < seconds:
        batch, sequence = next(size)
        cluster, strategy = next(turns)
        read(estimate(model, cluster, strategy, micro_batch=batch, seq_len=sequence))
        done += 1
    return done / (time.process_time() - start)


def deepened() -> float:
    """Rate at 800 layers beside the rate at 80."""
    from estimators import estimate
    from estimators.values import replace

    model, asked = kinds()
    some, size, taken = asked[:15], sizes(), {80: 0.0, 800: 0.0}
    deep = {
        layers: replace(model, parts=tuple(replace(p, count=layers) if p.is_block else p for p in model.parts))
        for layers in taken
    }
    for tokens in WARM:
        for cluster, strategy in some:
            for one in deep.values():
                answer(estimate(one, cluster, strategy, seq_len=tokens))
    for _ in range(150):  # in turn, so that drift of the machine hits both alike
        for layers, one in deep.items():
            start = time.process_time()
            for cluster, strategy in some:
                batch, sequence = next(size)
                answer(estimate(one, cluster, strategy, micro_batch=batch, seq_len=sequence))
            taken[layers] += time.process_time() - start
    return taken[80] / taken[800]


def answer(found: object) -> object:
    return found.gpu, found.host, found.verdict, found.peak.name  # type: ignore[attr-defined]


def every_term(found: object) -> object:
    answer(found)
    return [(t.name, t.bytes, t.formula) for i in found.instants for t in i.terms]  # type: ignore[attr-defined]


def recommending() -> float:
    """Seconds of all candidates for an 8B on eight GPUs; the median of questions that differ in sequence length."""
    from selector import recommend

    recommend("llama-8b", "8xH100").document()
    found = []
    for tokens in (1024, 1536, 3072, 4096, 6144):
        start = time.process_time()
        recommend("llama-8b", "8xH100", seq_len=tokens).document()
        found.append(time.process_time() - start)
    return statistics.median(found)


def planning(points: int = 10_000) -> float:
    """Seconds of so many points of ``plan``: Llama-3.1-70B on up to 1,152 GPUs."""
    from estimators import parse_cluster, resolve_model
    from selector.plan import Question, plan

    counts = tuple(8 * nodes for nodes in range(1, 146))
    asked = Question(resolve_model("llama-70b"), parse_cluster("8xH100"), 1e12, {"grad_accum": 1}, None, counts)
    start = time.process_time()
    found = plan(asked)
    return (time.process_time() - start) * points / found.evaluated


def sweeping() -> float:
    """Seconds of 10,000 combinations on two processes, start and reading of the file included."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "sweep.yaml"
        file.write_text(SWEPT, encoding="utf-8")
        return cold([PROGRAM, "sweep", str(file), "--processes", "2", "--format", "csv", "--out", f"{folder}/rows.csv"])


def main() -> None:
    sys.path.insert(0, str(ROOT))
    times, size = medians(), sizes()
    bare = times["bare"]
    lines = [
        Line("estimate --format json, all strategies, cold", times["json"] / bare, "x bare", 10),
        Line("estimate, rich table, all strategies, cold", times["table"] / bare, "x bare", 16),
        Line("estimates of a 70B: GPU, host, verdict and peak read", rate(answer, size), "a second", 5_000, True),
        Line("estimates of a 70B: every term read", rate(every_term, size), "a second", 1_000, True),
        Line("the same with 800 layers, as a share of that with 80", deepened(), "", 0.8, True),
        Line("recommend, 8B on 8 GPUs, in process", recommending(), "s", 0.3),
        Line("recommend, 8B on 8 GPUs, cold", times["recommend"], "s", 0.7),
        Line("plan, 10,000 points", planning(), "s", 2),
    ]
    if "--quick" not in sys.argv:
        lines.append(Line("sweep, 10,000 combinations on two cores", sweeping(), "s", 60))
    print(
        f"python -c pass {1000 * bare:.1f} ms, json {1000 * times['json']:.0f} ms, table {1000 * times['table']:.0f} ms"
    )
    for line in lines:
        print(line.text())
    if "--json" in sys.argv:
        print(json.dumps({"seconds": times, "lines": [line._asdict() for line in lines]}))


if __name__ == "__main__":
    main()
