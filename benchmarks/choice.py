"""How long choosing takes: ``python benchmarks/choice.py [--sweep]``.

``recommend`` for an 8B on eight GPUs, all candidates: the first answer of a process (at most 0.3 s, imports apart),
asking again with a change (the same), the whole command (0.7 s). ``--sweep``: 10,000 combinations of models, clusters and
workloads from YAML by the command, on all cores (60 s on two). Seconds of processor time beside those of the clock, for
machines that do other things too.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = str(ROOT / "dist_advisor.py")
RUNS = 9
ASKED = """
import json, time
import selector.recommendation, estimators.time
from selector import recommend
def spent(work):
    clock, processor = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - clock, time.process_time() - processor
first = spent(lambda: recommend("llama-8b", "8xA100-80GB", team="pytorch").document())
answer = recommend("llama-8b", "8xA100-80GB", team="pytorch")
again = [spent(lambda: answer.what_if(**change).document())
         for change in ({"seq_len": 8192}, {"gpus": "8xH100"}, {"global_batch": 64}, {"team": "deepspeed"})]
print(json.dumps({"first": first, "again": max(again)}))
"""
# 10 models x 10 clusters x 100 workloads.
SWEEP = """
models: [llama-3.2-1b, llama-8b, llama-70b, qwen2.5-7b, mistral-7b, gemma-2-9b, llama-2-13b, qwen2.5-32b, mixtral-8x7b,
         phi-3-mini]
gpus: [A10, 4xA10, 8xA100-40GB, 8xA100-80GB, 8xH100, 2x8xH100, 4x8xH100, 8xL40S, 4xH200, 8x8xA100-80GB]
workload:
  seq_len: [1024, 2048, 4096, 8192, 16384]
  micro_batch: [1, 2, 4, 8, 16]
  checkpointing: [none, full]
  method: [full, lora]
"""


def child(arguments: list[str]) -> tuple[float, float, str]:
    """Seconds of the clock and of processors, and what a process printed."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, check=True, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - start, used, done.stdout


def line(what: str, clock: float, processor: float, limit: float) -> None:
    print(f"{what:34} {clock:8.3f} s  {processor:8.3f} s of processors  (at most {limit:g} s)")


def main() -> None:
    runs = [json.loads(child(["-c", ASKED])[2]) for _ in range(RUNS)]
    for name, what in (("first", "recommend, first of a process"), ("again", "recommend, asked again")):
        line(what, *(statistics.median(r[name][i] for r in runs) for i in (0, 1)), 0.3)
    command = [PROGRAM, "recommend", "--model", "llama-8b", "--gpus", "8xA100-80GB"]
    cold = [child(command)[:2] for _ in range(RUNS)]
    line("recommend, the command", *(statistics.median(c[i] for c in cold) for i in (0, 1)), 0.7)
    if "--sweep" in sys.argv:
        with tempfile.TemporaryDirectory() as folder:
            file, out = Path(folder, "sweep.yaml"), Path(folder, "out.csv")
            file.write_text(SWEEP, encoding="utf-8")
            clock, processor, _ = child([PROGRAM, "sweep", str(file), "--format", "csv", "--out", str(out), "-q"])
            rows = len(out.read_text(encoding="utf-8").splitlines()) - 1
            line(f"sweep of {rows:,} on {os.cpu_count()} cores", clock, processor, 60)


if __name__ == "__main__":
    main()
