"""A failed allocation -> the tensor whose size it is."""

from __future__ import annotations

from collections.abc import Iterator

from estimators.knobs import KNOBS
from estimators.memory import Estimate
from estimators.model.spec import ModelSpec
from estimators.values import dataclass

TOLERANCE = 0.01  # messages round to two digits, the allocator to 2 MiB
SMALLEST = 16 * 2**20  # below that too many tensors have the size
MOST = 4


@dataclass(frozen=True, slots=True)
class Match:
    """A predicted amount that has the size of the failed allocation."""

    name: str
    bytes: int
    formula: str
    instant: str | None = None


def matches(
    tried: int, model: ModelSpec | None, ranks: int | None, found: Estimate | None, instant: str | None = None
) -> tuple[Match, ...]:
    """What the failed allocation may have been, the closest first; at the ``instant`` of the traceback before others.

    >>> matches(round(3.73 * 2**30), None, None, None)[0].formula
    '4 B x sub_group_size 1,000,000,000'
    """
    if tried < SMALLEST:
        return ()
    known = [*_estimated(found), *_of_model(model, ranks), *_of_work(found), *_of_engine(found)]
    near = [m for m in known if m.bytes and abs(m.bytes / tried - 1) <= TOLERANCE]
    unique: dict[tuple[int, str], Match] = {}
    for match in sorted(near, key=lambda m: (m.instant != instant, abs(m.bytes - tried))):
        unique.setdefault((match.bytes, match.name), match)
    return tuple(unique.values())[:MOST]


def _of_engine(found: Estimate | None) -> Iterator[Match]:
    """Amounts that depend on an engine's settings alone: sub-groups and buckets."""
    knobs = found.run.settings.knobs if found else {}
    default = {k.name: k.default for k in KNOBS if k.name in ("sub_group_size", "reduce_bucket_size")}
    group = int(knobs.get("sub_group_size") or default["sub_group_size"] or 0)
    bucket = int(knobs.get("reduce_bucket_size") or default["reduce_bucket_size"] or 0)
    yield Match("fp32 state of one sub-group", 4 * group, f"4 B x sub_group_size {group:,}", "step")
    yield Match("16-bit reduce bucket", 2 * bucket, f"2 B x reduce_bucket_size {bucket:,}", "reduce")
    yield Match("fp32 reduce bucket", 4 * bucket, f"4 B x reduce_bucket_size {bucket:,}", "reduce")


def _of_model(model: ModelSpec | None, ranks: int | None) -> Iterator[Match]:
    if model is None:
        return
    total = model.num_params
    if ranks and ranks > 1:
        for each, what in ((4, "fp32 copy"), (2, "16-bit copy")):
            formula = f"{each} B x {total:,} parameters / {ranks} ranks"
            yield Match(f"{what} of a rank's share", each * total // ranks, formula, "load")
    for each, what in ((2, "16-bit"), (4, "fp32")):
        yield Match(f"the whole model in {what}", each * total, f"{each} B x {total:,} parameters", "load")
        for part in model.blocks:
            formula = f"{each} B x {part.numel:,} of a {part.class_name}"
            yield Match(f"one block in {what}", each * part.numel, formula, "forward")
        for part in model.roots:
            for p in part.parameters:
                if p.numel * each >= SMALLEST:
                    yield Match(
                        f"{p.name} in {what}", each * p.numel, f"{each} B x {' x '.join(map(str, p.shape))}", None
                    )


def _of_work(found: Estimate | None) -> Iterator[Match]:
    """Logits and attention scores of the workload."""
    if found is None:
        return
    work, model = found.run.workload, found.run.model
    rows = work.micro_batch * work.seq_len
    vocabulary = next((p.shape[0] for part in model.roots for p in part.parameters if p.kind == "embedding"), 0)
    heads = model.config.get("num_attention_heads")
    for each, what in ((2, "16-bit"), (4, "fp32")):
        formula = f"{each} B x {work.micro_batch} x {work.seq_len} x {vocabulary}"
        yield Match(f"{what} logits", each * rows * vocabulary, formula, "loss")
        if isinstance(heads, int):
            formula = f"{each} B x {work.micro_batch} x {heads} heads x {work.seq_len}^2"
            yield Match(f"{what} attention scores", each * rows * work.seq_len * heads, formula, "forward")


def _estimated(found: Estimate | None) -> Iterator[Match]:
    for instant in found.instants if found else ():
        for term in instant.terms:
            if term.place == "gpu":
                yield Match(term.name, term.bytes, term.formula, instant.name)
