"""``dist-advisor plan``: time and cost of a training run against the number of GPUs."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING, Any

from estimators.errors import InputError, short
from selector.cli.output import check_format, emit, picture
from selector.cli.parser import CLUSTER_FLAGS, add_plot_flag, add_run_flags, calibrated, workload_fields

if TYPE_CHECKING:
    from rich.console import Console

    from selector.plan import Plan, Point, Question

EXAMPLE = """examples:
  dist-advisor plan --model llama-8b --gpu H100 --tokens 1T --deadline 30d --price 2.5
  dist-advisor plan --model llama-70b --gpu A100-80GB --tokens 300B --budget 2000000 --price 1.8 --network 200
  dist-advisor plan --model qwen2.5-7b --gpu H200 --tokens 50B --seq-len 8192 --global-batch 512 --format csv"""
TOKEN_UNITS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}
TIME_UNITS = {"h": 3600.0, "d": 86400.0, "w": 604800.0}
MOST = 65536
SYNC, MARK = ":sync_each_batch", "*"  # as a table of 80 columns has room for


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.epilog = EXAMPLE
    question = command.add_argument_group("question")
    question.add_argument("--model", required=True, metavar="M", help="catalogue name, folder, config.json or id")
    question.add_argument("--gpu", required=True, metavar="KIND", help="the card: H100, A100-80GB")
    question.add_argument("--tokens", required=True, metavar="T", help="tokens to train on: 300B, 15T")
    question.add_argument("--deadline", metavar="D", help="done in: 30d, 12h, 6w")
    question.add_argument("--budget", metavar="B", help="money, in the unit of --price")
    question.add_argument("--global-batch", metavar="N", help="sequences per optimizer step (4M tokens)")
    question.add_argument("--gpus-per-node", default="8", metavar="G", help="GPUs of a node (8)")
    question.add_argument("--max-gpus", default="4096", metavar="N", help="the largest count (4096)")
    question.add_argument("--strategy", action="append", metavar="S", help="only this one; may be repeated")
    question.add_argument("--trust-remote-code", action="store_true", help="run a model's own code to read its shapes")
    add_plot_flag(command, "time and cost against the number of GPUs")
    add_run_flags(command)


def quantity(text: str, units: dict[str, float], what: str, example: str) -> float:
    """``300B`` -> 3e11, ``30d`` -> 2_592_000.0; raises ``InputError``."""
    match = re.fullmatch(r"\s*([0-9]{0,15}\.?[0-9]{1,15}(?:e[0-9]{1,2})?)\s*([A-Za-z]?)\s*", text[:100])
    unit = next((u for u in units if match and u.lower() == match.group(2).lower()), None)
    if match is None or unit is None or len(text) > 100:
        raise InputError(f"{what} {short(text)} cannot be read; write it like {example}")
    value = float(match.group(1)) * units[unit]
    if not 0 < value < 1e24:
        raise InputError(f"{what} {short(text)} is out of range; write it like {example}")
    return value


def question_of(parsed: argparse.Namespace) -> Question:
    """The command line, resolved."""
    from estimators.cluster import parse_cluster
    from estimators.model import resolve_model
    from estimators.model.positions import default_length
    from estimators.workload import whole_number, workload
    from selector.plan import BATCH_TOKENS, Question, counts_up_to, strategy_names

    per_node = whole_number("gpus-per-node", parsed.gpus_per_node, 1024)
    most = whole_number("max-gpus", parsed.max_gpus, MOST)
    facts = {flag.replace("-", "_"): getattr(parsed, flag.replace("-", "_")) for flag in CLUSTER_FLAGS}
    cluster = calibrated(parsed, parse_cluster(f"{per_node}x{parsed.gpu}", **facts))
    if (cluster.nodes, cluster.gpus_per_node) != (1, per_node):
        raise InputError(f"--gpu {short(parsed.gpu)} has a count; name the card alone, and --gpus-per-node")
    tokens = quantity(parsed.tokens, TOKEN_UNITS, "--tokens", "300B or 15T")
    fields = workload_fields(parsed)
    model = resolve_model(parsed.model, trust_remote_code=parsed.trust_remote_code)
    fields |= {"seq_len": length} if (length := default_length(model, fields)) else {}
    seq_len = workload(**fields).seq_len
    sequences = None
    if parsed.global_batch:
        sequences = whole_number("global-batch", parsed.global_batch, 2**30)
    elif "grad_accum" not in fields:
        sequences = max(1, BATCH_TOKENS // seq_len)
    return Question(model, cluster, tokens, fields, sequences, counts_up_to(most, per_node),
                    strategy_names(parsed.strategy))  # fmt: skip


def run(parsed: argparse.Namespace) -> int:
    check_format(parsed)
    from selector.plan import plan

    deadline = quantity(parsed.deadline, TIME_UNITS, "--deadline", "30d or 12h") if parsed.deadline else None
    budget = quantity(parsed.budget, {"": 1.0}, "--budget", "200000") if parsed.budget else None
    question = question_of(parsed)
    if budget is not None and question.cluster.price_per_gpu_hour is None:
        raise InputError("--budget needs a price per GPU-hour; give --price 2.5")
    found = plan(question)
    rows = rows_of(found)
    said = sayings(found, deadline, budget)
    document = {
        "schema": "dist-advisor/plan/1",
        "rows": rows,
        "answers": answers(found, deadline, budget),
        "notes": said,
    }
    emit(parsed, document, rows, lambda console: draw(console, found, said), found.notes)
    picture(parsed, lambda: found.plot(deadline_seconds=deadline, budget=budget))
    if parsed.format in ("csv", "markdown") and not parsed.quiet:
        import sys

        print("\n".join(said), file=sys.stderr)
    return 0


def rows_of(found: Plan) -> list[dict[str, Any]]:
    """One row a count, for JSON, CSV and markdown: seconds, bytes, money as numbers."""
    return [
        {
            "gpus": p.gpus, "nodes": p.run.cluster.nodes, "strategy": p.run.strategy.name,
            "micro_batch": p.run.workload.micro_batch, "grad_accum": p.run.workload.grad_accum,
            "checkpointing": p.run.workload.checkpointing, "verdict": p.verdict, "gpu_bytes": round(p.memory_bytes),
            "step_seconds": p.time.step_seconds.expected,
            "tokens_per_s_per_gpu": p.time.tokens_per_s_per_gpu.expected, "mfu": p.time.mfu,
            "efficiency": found.efficiency(p), "bound_by": p.time.bound_by,
            "days": p.cost.days.expected, "days_low": p.cost.days.low, "days_high": p.cost.days.high,
            "gpu_hours": p.cost.gpu_hours, "cost": p.cost.money, "energy_kwh": p.cost.energy_kwh,
            "pays": found.knee is not None and p.gpus <= found.knee.gpus,
        }
        for p in found.points
    ]  # fmt: skip


def answers(found: Plan, deadline: float | None, budget: float | None) -> dict[str, Any]:
    """The counts that answer the questions that were asked; null where none does or nobody asked."""
    meets = found.meets(deadline) if deadline is not None else None
    paid = found.within(budget) if budget is not None else None
    layout = found.layout
    return {
        "stops_paying_after": found.knee.gpus if found.knee else None,
        "why": found.why,
        "deadline": meets.gpus if meets else None,
        "budget": paid.gpus if paid else None,
        "data_parallel_alone_until": found.beyond,
        "limits": [{"gpus": limit.gpus, "why": limit.why} for limit in found.limits],
        "model_parallel": None if layout is None else {
            "tensor": layout.tensor, "pipeline": layout.pipeline, "data": layout.data, "recompute": layout.recompute,
            "state_bytes": layout.state_bytes, "activation_bytes": layout.activation_bytes,
        },
    }  # fmt: skip


def sayings(found: Plan, deadline: float | None, budget: float | None) -> list[str]:
    """The answers in words."""
    said = [found.why]
    if deadline is not None:
        said.append(_deadline(found, deadline))
    if budget is not None:
        said.append(_budget(found, budget))
    if found.beyond is not None:
        said.append(_beyond(found))
    return said


def _deadline(found: Plan, deadline: float) -> str:
    point = found.meets(deadline)
    if point is None:
        fastest = min((p.cost.seconds.expected for p in found.points), default=None)
        return f"no count is done in {span(deadline)}" + (f"; the fastest takes {span(fastest)}" if fastest else "")
    sure = next((p.gpus for p in found.points if p.cost.seconds.high <= deadline), None)
    surely = f", {sure:,} if everything goes slowly" if sure else ", and no count if everything goes slowly"
    takes = f"{point.gpus:,} GPUs are expected to do it ({span(point.cost.seconds.expected)})"
    return f"done in {span(deadline)}: {takes}{surely}"


def span(seconds: float) -> str:
    """``30 days``, ``24.8 days``, ``1.5 hours``: in the largest unit that makes at least one, days from two on."""
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= (2 if unit == "days" else 1) * size:
            break
    return f"{seconds / size:,.1f}".removesuffix(".0") + f" {unit if seconds != size else unit[:-1]}"


def _budget(found: Plan, budget: float) -> str:
    point = found.within(budget)
    if point is None:
        least = min((p.cost.money for p in found.points if p.cost.money is not None), default=None)
        return f"a budget of {budget:,.0f} does not pay for it" + (
            f"; the cheapest costs {least:,.0f}" if least else ""
        )
    return f"a budget of {budget:,.0f} pays for {point.gpus:,} GPUs at most: {span(point.cost.seconds.expected)}"


def in_words(tokens: float) -> str:
    """As ``--tokens`` is written: ``300B``, ``1.5T``."""
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if tokens >= size:
            return f"{tokens / size:,.4g}{unit}"
    return f"{tokens:,.0f}"


def _beyond(found: Plan) -> str:
    from estimators.time.model_parallel import ENGINES
    from estimators.units import gib

    reasons = "; ".join(limit.why for limit in found.limits if limit.gpus == found.beyond)
    text = (
        f"at {found.beyond:,} GPUs data parallelism alone no longer serves: {reasons}; so many need a larger global batch, or "
        f"tensor or pipeline parallelism, with {', '.join(ENGINES[:-1])} or {ENGINES[-1]}"
    )
    layout = found.layout
    if layout is None:
        return text + "; no layout of that many fits by the published formulas"
    return text + (
        f"; {layout} needs {gib(layout.total_bytes)} GiB a GPU by the published formulas "
        f"({gib(layout.state_bytes)} states, {gib(layout.activation_bytes)} activations at micro-batch 1)"
    )


BAR = 10  # columns of the bar of time, where there is room


def draw(console: Console, found: Plan, said: list[str]) -> None:
    """The table of the terminal, with a bar of time against count."""
    from rich.table import Table

    from selector.report.text import bar

    priced = any(p.cost.money is not None for p in found.points)
    question = found.question
    console.print(
        f"{question.model.name} on {question.cluster.gpu.name}: {in_words(question.tokens)} tokens, "
        + (f"global batch {question.sequences:,} sequences or near it" if question.sequences else "batch grows with the GPUs"),
        style="bold",
    )  # fmt: skip
    names = ["GPUs", "strategy", "batch", "days", "", "MFU", "per GPU", *(["cost"] if priced else []), "waits for"]
    rows = [_cells(found, p, "", priced) for p in found.points]
    taken = sum(max(len(cell) for cell in column) + 1 for column in zip(names, *rows, strict=True))
    room = max(min(BAR, console.width - taken), 0)  # the bar takes what the figures leave
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    for name in names:
        table.add_column(name, justify="left" if name in ("", "strategy", "waits for") else "right", no_wrap=True)
    longest = max((p.cost.days.expected for p in found.points), default=1.0)
    for p, row in zip(found.points, rows, strict=True):
        row[names.index("")] = bar(p.cost.days.expected / longest, room)
        table.add_row(*row)
    console.print(table)
    if any(SYNC in p.run.strategy.name for p in found.points):
        console.print(
            f"{MARK} with sync_each_batch: gradients are reduced in every micro-step, and stay sharded", style="dim"
        )
    for line in said:
        console.print(line)


def days(p: Point) -> str:
    """With one digit, below a day with two that count."""
    found = p.cost.days.expected
    return f"{found:,.1f}" if found >= 1 else f"{found:.2g}"


def _cells(found: Plan, p: Point, drawn: str, priced: bool) -> list[str]:
    load = p.run.workload
    mark = " <" if found.knee is p else ""
    cells = [
        f"{p.gpus:,}{mark}", p.run.strategy.name.replace(SYNC, MARK), f"{load.micro_batch}x{load.grad_accum}"
        + ("" if load.checkpointing == "none" else " ac"), days(p), drawn, f"{p.time.mfu:.0%}",
        f"{found.efficiency(p):.0%}",
    ]  # fmt: skip
    if priced:
        cells.append(f"{p.cost.money or 0:,.0f}")
    return [*cells, p.time.bound_by]
