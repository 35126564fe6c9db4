"""Published memory as cases: a row -> the estimate of its run; what rows leave unsaid is read the same way for all.

Readings, beside those of ``validate.speed_cases``:

- a version that is not stated is the newest release of the day (``validate.released``);
- litgpt trains to a global batch (``global_batch_size``, 16 and up in its recipes): where the number of micro-steps is
  not stated there are several;
- targets of adapters are given by role; a family whose module has another name gets that name (``ROLES``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from estimators.errors import AdvisorError
from estimators.memory import Estimate
from estimators.stacks import NEWEST
from validate.released import versions_at
from validate.speed_cases import DATA, Case

FILE = DATA / "memory_cases.jsonl"
QUANTITIES = ("allocated", "reserved", "process")
HEADLINE = ("A", "B")
# What a family calls the projections that rows name by role (modeling_phi.py, modeling_phi3.py).
ROLES = {
    "phi": {"o_proj": "dense", "gate_proj": "fc1", "up_proj": "fc1", "down_proj": "fc2"},
    "phi3": {"q_proj": "qkv_proj", "k_proj": "qkv_proj", "v_proj": "qkv_proj", "gate_proj": "gate_up_proj",
             "up_proj": "gate_up_proj"},
}  # fmt: skip
# Rows whose own figures contradict their settings, at most 3 % of all.
_GEMMA = (
    "the chart's 25.2 GiB (liger-014) is less than the fp32 parameters, gradients and AdamW states that a bf16-mixed "
    "run holds on each of 4 GPUs, 31.8 GiB: settings of this chart are misread"
)
SET_ASIDE = dict.fromkeys(("liger-013", "liger-014", "liger-015", "liger-016"), _GEMMA)


@dataclass(frozen=True)
class MemoryCase(Case):
    """One measured run."""

    def readings(self) -> dict[str, Any]:
        row = self.row
        versions = versions_at(row.get("date"), row.get("versions") or {}, str(row["workload"].get("stack")))
        found: dict[str, Any] = {"versions": {name: v for name, v in versions.items() if name in NEWEST}}
        names = ROLES.get(str((row["model"]["config"] or {}).get("model_type")), {})
        targets = row["workload"].get("lora_targets")
        if row["workload"].get("stack") == "litgpt" and "grad_accum" not in row["workload"]:
            found["grad_accum"] = 2
        if names and isinstance(targets, list):
            found["lora_targets"] = list(dict.fromkeys(names.get(t, t) for t in targets))
        return found

    @cached_property
    def estimate(self) -> Estimate:
        return Estimate(self.run)

    @property
    def counts(self) -> bool:
        """Whether the row is good enough for the headline."""
        return self.row["quality"] in HEADLINE

    @property
    def measured(self) -> dict[str, float]:
        """GiB by quantity."""
        found = self.row["measured"]
        return {q: float(found[f"{q}_gib"]) for q in QUANTITIES if found.get(f"{q}_gib")}

    @property
    def oom(self) -> bool | None:
        value = self.row["measured"].get("oom")
        return None if value is None else bool(value)

    def obstacle(self) -> str | None:
        """Why this row cannot be answered; None when it can."""
        if self.id in SET_ASIDE:
            return f"set aside: {SET_ASIDE[self.id]}"
        if self.row["strategy"] is None:
            return "tensor, pipeline, expert or context parallelism, or an engine of its own"
        if not self.row["cluster"].get("gpu"):
            return "the card is not named"
        if not self.measured and self.oom is None:
            return "no figure of this kind"
        try:
            return self.estimate.not_counted or None
        except AdvisorError as error:
            return str(error)


def read(path: str | None = None) -> Iterator[MemoryCase]:
    """Every case of a file, or of the package's own."""
    for line in (Path(path) if path else FILE).read_text(encoding="utf-8").splitlines():
        if line.strip():
            yield MemoryCase(json.loads(line))
