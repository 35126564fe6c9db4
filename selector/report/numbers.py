"""Tables of numbers that reports share: the question, bytes, seconds, accuracy, versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from estimators.cluster import Cluster
from estimators.memory import Estimate
from estimators.model.spec import ModelSpec
from estimators.result import CATEGORIES, Interval
from estimators.time import StepTime
from estimators.units import gib, readable
from estimators.workload import workload
from selector.report.document import workload_of
from selector.report.markup import bullets, facts, paragraph, table
from selector.report.text import CATEGORY_WORDS, speed
from selector.trust import NOT_SCORED, trust
from selector.trust import table as scores

if TYPE_CHECKING:
    from selector.question import Question

SHOWN = ("method", "precision", "optimizer", "seq_len", "micro_batch", "grad_accum", "checkpointing", "attention",
         "loss", "compile", "stack", "lora_rank", "quant")  # fmt: skip


def question(model: ModelSpec, estimates: Sequence[Estimate]) -> str:
    """What was asked of estimates: model, cluster, workload as it was resolved."""
    work = workload_of(estimates)
    adapters = estimates[0].run.workload.has_adapters
    shown = [(n, work[n]) for n in SHOWN if work[n] is not None and (adapters or n not in ("lora_rank", "quant"))]
    trained = f", {estimates[0].run.model.num_trainable / 1e9:.3g} billion train"
    return facts([*_where(model, estimates[0].run.cluster, trained), *((spelled(n), said(v)) for n, v in shown)])


def asked(of: Question) -> str:
    """What was asked of a recommendation: what was given, and what was left free or at its default."""
    defaults = workload()
    free = [f"{spelled(n)} {said(v)}" for n in SHOWN if n not in of.fields and (v := getattr(defaults, n)) is not None]
    free = [words for words in free if not words.startswith(("lora", "quant"))]
    rows = [*_where(of.model, of.cluster), *((spelled(n), said(v)) for n, v in of.fields.items() if n != "versions")]
    rows.append(("not given", ", ".join(free) + "; where that helps another is chosen"))
    rows += [("team", of.team or "not given"), ("goal", of.goal), ("policy", of.policy)]
    if of.global_batch:
        rows.append(("global batch", f"{of.global_batch:,} sequences"))
    if of.allow:
        rows.append(("may replace full training", ", ".join(of.allow)))
    if of.strategy is not None:
        rows.append(("strategy", f"{of.strategy.name}, given"))
    return facts(rows)


def _where(model: ModelSpec, cluster: Cluster, trained: str = "") -> list[tuple[str, str]]:
    """Model, GPUs, host."""
    nodes = f"{cluster.nodes} nodes x " if cluster.nodes > 1 else ""
    host = "not given" if cluster.host_bytes is None else f"{gib(cluster.host_bytes, 0)} GiB a node"
    return [
        ("model", f"{model.name}: {model.num_params / 1e9:.2f} billion parameters{trained}"),
        ("GPUs", f"{nodes}{cluster.gpus_per_node} x {cluster.gpu.label}, {gib(cluster.gpu.memory_bytes)} GiB each"),
        ("host RAM", host),
    ]


def spelled(name: str) -> str:
    return name.replace("_", " ")


def said(value: object) -> str:
    """A value for people: yes and no, lists with commas."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def bytes_of(estimate: Estimate) -> str:
    """Intervals of GiB, from tensors to the whole process, and the other places."""
    gpu = estimate.gpu
    rows = [
        _interval("tensors (allocated)", gpu.allocated),
        _interval("with the allocator's reserve (reserved)", gpu.reserved),
        *(_interval(o.name, Interval(o.low, o.expected, o.high)) for o in gpu.runtime),
        _interval("whole process", gpu.process),
        ("the card has", "", gib(gpu.capacity), ""),
        _interval("host RAM of a node", estimate.host),
    ]
    if estimate.nvme_bytes:
        rows.append(("NVMe of a node", "", gib(estimate.nvme_bytes), ""))
    return table(("GiB", "low", "expected", "high"), rows)


def _interval(name: str, value: Interval) -> tuple[str, str, str, str]:
    return name, gib(value.low), gib(value.expected), gib(value.high)


def instants(estimate: Estimate) -> str:
    """GiB of one GPU: an instant a row, a category a column."""
    used = [c for c in CATEGORIES if any(i.by_category().get(c) for i in estimate.instants)]
    rows = []
    for instant in estimate.instants:
        found = instant.by_category()
        mark = " (peak)" if instant is estimate.peak else ""
        rows.append((instant.name + mark, gib(instant.gpu_bytes), *(gib(found.get(c, 0)) for c in used)))
    return table(("GiB of one GPU", "all", *(CATEGORY_WORDS[c] for c in used)), rows)


def terms(estimate: Estimate) -> str:
    """The terms of the peak, largest first, with the formula of each."""
    found = sorted((t for t in estimate.peak.terms if t.place == "gpu"), key=lambda t: -t.bytes)
    rows = [(t.name, readable(t.bytes), CATEGORY_WORDS[t.category], t.formula) for t in found]
    return table((f"at {estimate.peak.name}", "size", "category", "formula"), rows, stack=True)


def seconds(estimate: Estimate) -> str:
    """Seconds of a step by part, tokens a second, MFU."""
    time = estimate.time
    if not isinstance(time, StepTime):
        return paragraph("no time: " + "; ".join(time.missing), quiet=True)
    step, rate = time.step_seconds, time.tokens_per_s_per_gpu
    head = table(("time", "low", "expected", "high"), [
        ("one optimizer step (s)", f"{step.low:.3g}", f"{step.expected:.3g}", f"{step.high:.3g}"),
        ("tokens a second of one GPU", f"{rate.low:,.0f}", f"{rate.expected:,.0f}", f"{rate.high:,.0f}"),
    ])  # fmt: skip
    parts = sorted(time.parts, key=lambda p: -p.seconds)
    rows = [(p.name, f"{p.seconds:.3f}", f"{p.seconds / step.expected:.0%}", p.resource) for p in parts]
    said = f"MFU {time.mfu:.0%}; most of the step is spent on {time.bound_by}."
    return head + paragraph(said) + table(("part of a step", "seconds", "share", "waits for"), rows)


def accuracy(estimates: Sequence[Estimate]) -> str:
    """How the estimator did on measured runs of these kinds."""
    said = list(dict.fromkeys(trust(e) for e in estimates))
    engines = {e.run.strategy.engine for e in estimates}
    rows = [
        (row["engine"], row.get("method") or "all", row.get("stack") or "all", row["n"], f"{100 * row['p90']:.0f} %")
        for row in scores()
        if row["engine"] in engines
    ]
    shown = table(("engine", "method", "stack", "measured runs", "90 % of them within"), rows)
    none = paragraph("No run of this engine was measured and scored.", quiet=True) if not rows else ""
    return bullets(said or [NOT_SCORED]) + shown + none


def versions(found: Mapping[str, str]) -> str:
    """What the answer assumes, and what made it."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        own = version("dist-advisor")
    except PackageNotFoundError:
        own = "not installed"
    return facts([("dist-advisor", own), *sorted(found.items())])


def strategies(estimates: Sequence[Estimate]) -> str:
    """A strategy a row."""
    rows = [
        (e.strategy, f"verdict:{e.verdict}", gib(e.gpu.expected), e.peak.name, gib(e.gpu.process.expected),
         gib(e.host.expected, 0), f"{speed(e):,.0f}" if speed(e) else "-")
        for e in estimates
    ]  # fmt: skip
    titles = ("strategy", "verdict", "GiB of tensors", "peak at", "of the process", "host GiB", "tok/s of a GPU")
    return table(titles, rows, stack=True)
