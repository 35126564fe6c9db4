"""Tiny cells of every engine on the present device: the first thing that the owner of a GPU runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from estimators.cluster import Cluster, Gpu
from estimators.memory import resolve
from validate.cells.models import LLAMA
from validate.deepspeed_json import settled
from validate.job import Task
from validate.launch import Progress
from validate.modes import cards
from validate.report import Report
from validate.session import TIMEOUT, Planned, answers

RANKS = 2
SEQ_LEN = 32
BUCKET = "reduce_bucket_size=50000"
# name -> strategy and workload; the same tiny Llama, whose sizes nothing divides, as in the cells over gloo
CELLS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "ddp": ("ddp", {"stack": "torch"}),
    "fsdp2": ("fsdp-full-shard", {"stack": "torch"}),
    "fsdp2-lora": ("fsdp-full-shard", {"stack": "torch", "method": "lora", "lora_rank": 4}),
    "fsdp1": ("fsdp1-full-shard", {"stack": "torch", "optimizer": "adamw-fused"}),
    "zero1": (f"zero1:{BUCKET}", {"stack": "deepspeed"}),
    "zero2-offload": (f"zero2:{BUCKET}+optimizer@cpu", {"stack": "deepspeed"}),
    "zero3": ("zero3:reduce_bucket_size=100000,param_persistence_threshold=0,prefetch_bucket_size=0,max_reuse_distance=0",
              {"stack": "deepspeed"}),
}  # fmt: skip


@dataclass(frozen=True)
class Checked:
    """One engine: its name here, and what it answered."""

    name: str
    report: Report

    def row(self) -> dict[str, Any]:
        report = self.report
        off = [f"{r.instant} {r.category}" for r in report.rows if not r.agrees and r.category != "all"]
        return {
            "engine": self.name, "strategy": report.strategy, "mode": report.mode, "device": report.device,
            "ranks": report.ranks, "status": report.status, "error": report.error, "differs": off,
            "reason": str(report.failure) if report.failure else "",
        }  # fmt: skip


def check(timeout: float = TIMEOUT, progress: Progress = lambda task, phase: None) -> list[Checked]:
    """Every engine, in one start of the ranks: on two cards, on one in a fake group of two, or over gloo."""
    from pathlib import Path

    found = cards().count
    mode = "gpu" if found >= RANKS else "rehearse" if found else "cpu"
    device = "cuda" if found else "cpu"
    card = Gpu(device, device, cards().total_bytes or 2**34)
    made = []
    for strategy, asked in CELLS.values():
        fields = {"checkpointing": "none", "seq_len": SEQ_LEN, **asked}
        run = resolve(
            {**LLAMA, "architectures": ["LlamaForCausalLM"]}, Cluster(card, RANKS), strategy, device, **fields
        )
        config = settled(None, run, Path("."))[0] if run.strategy.engine == "deepspeed" else None
        made.append(Planned(mode, "self-check", device, run, {}, Task(run, config), ()))
    return [Checked(name, report) for name, report in zip(CELLS, answers(made, timeout, progress), strict=True)]
