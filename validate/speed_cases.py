"""Published throughput as cases: a line of JSON -> a ``Run``, what was measured, and the class that it is scored in.

Format: ``data/README.md``. A row that cannot be scored says why; none is dropped silently.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from estimators.cluster import parse_cluster
from estimators.errors import AdvisorError
from estimators.memory import resolve
from estimators.run import Run
from estimators.time.shapes import token_work

DATA = Path(__file__).with_name("data")
FILES = ("throughput_cases.jsonl", "memory_cases.jsonl")
SPEEDS = ("tokens_per_s_per_gpu", "step_seconds", "mfu")
DENSE = "dense FSDP/DDP, 1B and up"
ONE_GPU = "dense, one GPU"
SMALL = "dense FSDP/DDP, below 1B"
# Composer synchronises FSDP in every micro-step: composer/distributed/dist_strategy.py ``ddp_sync_context`` returns
# at once for a model that is not DistributedDataParallel, so no_sync is never entered.
SYNCS_EACH_BATCH = ("composer",)
# fms-fsdp reduces in bf16 wherever it can: fms_fsdp/policies/mixed_precision.py ``bfSixteen``.
REDUCE_DTYPE = {"fms-fsdp": "bf16"}
# Rates of cards whose catalogue entry has none, dense bf16 TFLOPS, on boards with NVLink: H100 of 96 GB ran at 500 W of
# 700 W; clocks, and with them rates, go about as the square root of power: 989 x sqrt(500 / 700).
SUPPLIED = {"h100-96gb-sxm5": 836.0}
# A workload key that decides the time and has no harmless default.
DECISIVE = ("seq_len", "micro_batch", "checkpointing")


@dataclass(frozen=True)
class Case:
    """One measured run."""

    row: Mapping[str, Any]

    @property
    def id(self) -> str:
        return str(self.row["id"])

    @property
    def group(self) -> str:
        return str(self.row["group"])

    @property
    def tokens_per_s(self) -> float | None:
        """Per GPU; derived from seconds of a step where only those were published."""
        measured, load = self.row["measured"], self.row["workload"]
        if measured.get("tokens_per_s_per_gpu"):
            return float(measured["tokens_per_s_per_gpu"])
        if measured.get("step_seconds") and load.get("grad_accum") and load.get("micro_batch"):
            return float(load["grad_accum"] * load["micro_batch"] * load["seq_len"] / measured["step_seconds"])
        return None

    @cached_property
    def size(self) -> str:
        """Nominal size, by which models are held out: 7B-class models of every family together."""
        billions = self.run.model.num_params / 1e9
        steps = (0.2, 0.5, 0.9, 2, 4, 9, 16, 40, 1e9)
        names = ("125m", "350m", "760m", "1b", "3b", "7b", "13b", "30b", "70b")
        return next(name for name, top in zip(names, steps, strict=True) if billions < top)

    @cached_property
    def run(self) -> Run:
        """The run; raises the estimators' errors."""
        row = self.row
        where, load = row["cluster"], dict(row["workload"])
        for key in ("float8", "dora", "seq_kind"):
            load.pop(key, None)
        if "reduce_dtype" not in load and row.get("engine") in REDUCE_DTYPE:
            load["reduce_dtype"] = REDUCE_DTYPE[row["engine"]]
        per_node = where["gpus"] // where["nodes"]
        cluster = parse_cluster(
            f"{where['nodes']}x{per_node}x{where['gpu']}",
            network=where.get("nic_gbit_per_gpu"),
            interconnect=where.get("interconnect") or ("nvlink" if where["gpu"] == "H100-96GB" else None),
        )  # fmt: skip
        strategy = row["strategy"]
        if load.get("stack") in SYNCS_EACH_BATCH and strategy.startswith("fsdp") and ":" not in strategy:
            head, plus, tail = strategy.partition("+")
            strategy = f"{head}:sync_each_batch=true{plus}{tail}"
        load |= self.readings()
        return resolve(row["model"]["config"] or row["model"]["name"], cluster, strategy, **load)

    def readings(self) -> dict[str, Any]:
        """Workload fields that a score reads into a row beside those it states; none for speed."""
        return {}

    def obstacle(self) -> str | None:
        """Why this row cannot be scored; None when it can."""
        row, load = self.row, self.row["workload"]
        if row["strategy"] is None:
            return "tensor, pipeline, expert or context parallelism, or an engine of its own"
        if self.tokens_per_s is None:
            return "no tokens per second and no step to derive them from"
        if load.get("float8"):
            return "float8 products"
        if load.get("seq_kind") in ("longest", "cap"):
            return "sequences are shorter than the one that is stated"
        if not row["cluster"].get("gpu"):
            return "the card is not named"
        unknown = [key for key in DECISIVE if load.get(key) is None]
        if unknown:
            return f"{', '.join(unknown)} not stated"
        try:
            _ = self.run
        except AdvisorError as error:
            return str(error)
        return None

    @cached_property
    def kind(self) -> str:
        """The class that a row is scored in; classes are never mixed."""
        run = self.run
        how, load = run.strategy, run.workload
        if token_work(run.model).expert_products:
            return "mixture of experts"
        if how.optimizer or how.params or load.checkpointing == "offload":
            return "offload"
        if run.cluster.gpu.id.startswith(("rtx", "titan")):
            return "consumer cards"
        if load.method != "full":
            return "QLoRA" if load.method == "qlora" else "LoRA"
        if how.engine == "deepspeed":
            return "ZeRO"
        if load.precision in ("fp16-mixed", "fp16", "fp32") or self.row["quality"] == "C":
            return "dense, fp16, fp32 or several settings unknown"
        if run.cluster.gpu.id in SUPPLIED:
            return "dense, rate of the card supplied"
        if how.engine == "torch":
            return ONE_GPU
        return DENSE if run.model.num_params >= 1e9 else SMALL


def read_cases(path: str | None = None) -> Iterator[Case]:
    """Cases with a speed, of a file or of the package's own."""
    for file in [Path(path)] if path else [DATA / name for name in FILES]:
        for line in file.read_text(encoding="utf-8").splitlines():
            row = json.loads(line) if line.strip() else {}
            if any(key in row.get("measured", {}) for key in SPEEDS):
                yield Case(row)
