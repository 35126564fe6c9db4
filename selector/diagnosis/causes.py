"""Why a run failed, in sentences with the log's numbers."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

from estimators.cluster import Cluster
from estimators.memory import Estimate
from estimators.units import gib, readable
from estimators.values import dataclass
from selector.checks.rules import RULES
from selector.diagnosis.oom import OutOfMemory
from selector.diagnosis.signatures import HOST, SIGNATURES
from selector.diagnosis.sizes import Match

_BATCH = re.compile(r"\b(\d{1,9}) != (\d{1,9}) \* (\d{1,9}) \* (\d{1,9})\b")


@dataclass(frozen=True, slots=True)
class Cause:
    """One explanation. ``rule`` is a rule of ``check`` where one covers it; ``line`` counts from 1 in the log; ``where``
    is the place in a configuration that the same rule points at."""

    rule: str
    title: str
    because: str
    fix: str
    source: str = ""
    line: int | None = None
    where: str = ""


def explained(
    message: OutOfMemory, same: Sequence[Match], instant: str | None, found: Estimate | None, line: int
) -> Iterator[Cause]:
    """What an out-of-memory message says, what the failed tensor was, and what the estimate makes of it."""
    yield from _card(message, line)
    tried = readable(message.tried)
    for match in same[:1]:
        where = f" ({match.instant})" if match.instant else ""
        because = f"{tried} = {match.formula}{where}"
        yield Cause("", f"the failed allocation is {match.name}", because, _advice(match, instant), line=line)
    if instant == "step":
        rule = RULES["first-step-peak"]
        yield Cause(rule.name, "the optimizer step", rule.trigger, rule.fix, rule.source, line)
    if found is not None:
        yield from _compared(message, found, line)
    elif not same and not message.is_fragmented:
        because = f"{tried} match no amount that is known here"
        yield Cause("", "unknown tensor", because, "give --config, --model and --gpus", line=line)


def _card(message: OutOfMemory, line: int) -> Iterator[Cause]:
    """Fragments, and other processes."""
    if message.is_fragmented:
        rule = RULES["alloc-conf"]
        waste = gib(message.unallocated or 0)
        because = f"{readable(message.tried)} were asked for while {waste} GiB lay reserved and unused"
        yield Cause(rule.name, "fragmentation", because, rule.fix, rule.source, line)
    if message.others > message.shortage > 0:
        because = f"other processes hold {gib(message.others)} GiB of it"
        fix = "end them, or choose another card with CUDA_VISIBLE_DEVICES"
        yield Cause("", "another process on the card", because, fix, line=line)


def _compared(message: OutOfMemory, found: Estimate, line: int) -> Iterator[Cause]:
    needed, card = gib(found.gpu.process.expected), gib(found.gpu.capacity)
    if found.verdict == "no":
        because = f"the estimate is {needed} GiB at {found.peak.name} on a card of {card}"
        yield Cause("does-not-fit", f"{found.strategy} does not fit", because, "one of the changes below", line=line)
    elif not message.is_fragmented:
        because = (
            f"{needed} of {card} GiB are expected: the run is not the one described, or something else holds memory"
        )
        fix = "compare batch, sequence length and strategy with the run; look at nvidia-smi"
        yield Cause("", "the estimate fits", because, fix, line=line)


def _advice(match: Match, instant: str | None) -> str:
    if "share" in match.name or "master" in match.name:
        return "more ranks, or offload the optimizer"
    if "sub-group" in match.name:
        return "a smaller sub_group_size, or offload the optimizer"
    if "bucket" in match.name:
        return "a smaller reduce_bucket_size"
    if "logits" in match.name:
        return "a fused or chunked loss, a smaller micro-batch"
    if "whole model" in match.name:
        return "build or load the model sharded: zero.Init, or rank-0 loading"
    if "attention scores" in match.name:
        return "sdpa or flash attention"
    return "one of the changes below" if instant else "see the changes below"


def batch(lines: Sequence[str], cluster: Cluster | None) -> Iterator[Cause]:
    """DeepSpeed's assertion ``train != micro * accumulation * world``."""
    for number, line in enumerate(lines, 1):
        match = _BATCH.search(line)
        if match is None:
            continue
        train, micro, steps, world = map(int, match.groups())
        ranks = cluster.ranks if cluster else None
        consistent = train == micro * steps * (ranks or 0) or (
            ranks is None and world == 1 and train % (micro * steps or 1) == 0
        )
        if world == 1 and ranks != 1 and consistent and train != micro * steps:
            rule = RULES["ds-batch-ok-but-world1"]
            real = train // (micro * steps)
            says = f"{train} = {micro} x {steps} x {real}: the numbers are right, the world was read as 1"
        else:
            rule = RULES["ds-batch-triangle"]
            per = max(micro * world, 1)
            below = train - train % per
            near = " or ".join(f"{n} (accumulation {n // per})" for n in (below, below + per) if n)
            says = f"{train} is not {micro} x {steps} x {world} = {micro * steps * world}; the nearest are {near}"
        yield Cause(rule.name, rule.name, says, rule.fix, rule.source, number)
        return


def _mismatches(lines: Sequence[str]) -> str:
    """The values that the Trainer lists below its message."""
    listed = itertools.takewhile(lambda line: "- ds " in line, lines[:20])
    return "; ".join(line.partition("- ds ")[2].strip() for line in listed)


def signed(lines: Sequence[str], found: Estimate | None) -> Iterator[Cause]:
    """Signatures in the order of the table, each once, with the line where it stands."""
    for signature in SIGNATURES:
        number = next((n for n, line in enumerate(lines, 1) if signature.pattern.search(line)), None)
        if number is None:
            continue
        rule = RULES[signature.rule]
        says = signature.says or rule.trigger
        if signature.rule == "hf-ds-mismatch":
            says = _mismatches(lines[number:]) or says
        if signature.kind == HOST and found is not None:
            worst = max(found.instants, key=lambda i: i.total("host"))
            have = found.run.cluster.host_bytes
            says += f"; the estimate is {gib(found.host.expected, 0)} GiB a node at {worst.name}"
            says += f", the node has {gib(have, 0)}" if have else ""
        yield Cause(rule.name, rule.name, says, rule.fix, rule.source, number)
