"""What a claim is, and how its numbers are asked for: by the command that a reader can type."""

from __future__ import annotations

import contextlib
import io
import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from estimators import estimate, parse_strategy
from estimators.time import Unknown, step_time
from selector.cli import main as dist_advisor

GIB, GB = 2**30, 10**9
HOLDS, PARTLY, FAILS = "holds", "holds in part", "does not hold"
Examined = tuple[str, str, list[str]]  # verdict, what was found, commands


@dataclass(frozen=True)
class Claim:
    """A sentence of a document, and the function that examines it: verdict, what was found, commands."""

    title: str
    place: str
    quote: str
    examine: Callable[[], Examined]


def run(command: str) -> dict[str, Any]:
    """The JSON of one command."""
    page = io.StringIO()
    with contextlib.redirect_stdout(page):
        status = dist_advisor([*shlex.split(command), "--format", "json", "-q"])
    if status not in (0, 1):
        raise SystemExit(f"dist-advisor {command}: exit status {status}")
    return json.loads(page.getvalue())


def estimates(question: str, *strategies: str) -> tuple[dict[str, dict[str, Any]], str]:
    """Estimates by strategy as it was asked, and the command."""
    command = f"estimate {question} " + " ".join(f"--strategy {s}" for s in strategies)
    found = run(command)["estimates"]
    if len(strategies) == 1:
        return {strategies[0]: found[0]}, command
    by_name = {e["strategy"]: e for e in found}
    return {s: by_name[parse_strategy(s).name] for s in strategies}, command


def process(found: dict[str, Any]) -> str:
    gpu = found["gpu"]
    return f"{gpu['process_bytes']['expected'] / GIB:.1f} of {gpu['capacity_bytes'] / GIB:.1f} GiB ({found['verdict']})"


def host(found: dict[str, Any]) -> str:
    return f"{found['host']['bytes_per_node']['expected'] / GIB:,.0f} GiB of host RAM"


def category(found: dict[str, Any], instant: str, *categories: str) -> int:
    terms = next(i for i in found["instants"] if i["name"] == instant)["terms"]
    return sum(t["bytes"] for t in terms if t["category"] in categories and t["place"] == "gpu")


def states(found: dict[str, Any], instant: str = "step") -> int:
    """Parameters, gradients, master weights and optimizer states of a GPU."""
    return category(found, instant, "params", "gradients", "master", "optimizer")


def rate(model: str, gpus: str, strategy: str, **fields: Any) -> float | None:
    """Tokens per second and GPU."""
    time = step_time(estimate(model, gpus, strategy, **fields).run)
    return None if isinstance(time, Unknown) else time.tokens_per_s_per_gpu.expected
