"""What passes through a network in a micro-step: tokens of the text, and patches or frames of towers beside it.

A tower's length does not follow the sequence: one image or clip of a sample has as many patches or frames as the
ledgers say (``estimators.activations``), whose sizes are those of the real classes. A sample has ``images`` of the
workload; attention stays inside each of them.
"""

from __future__ import annotations

from functools import lru_cache

from estimators.activations.amounts import IMAGE_ROLES, runs_of
from estimators.activations.question import question_of
from estimators.activations.tape import evaluate
from estimators.errors import NotModelled
from estimators.model.spec import ModelSpec
from estimators.run import Run
from estimators.time.shapes import NOT_TOKENS, TokenWork, token_work, tower_work, towers
from estimators.values import dataclass
from estimators.workload import DTYPE_BYTES


@dataclass(frozen=True, slots=True)
class Stream:
    """Work for each position, positions that attend to one another, and how many such rows a sample has."""

    work: TokenWork
    length: int
    rows: int = 1


@dataclass(frozen=True, slots=True)
class Streams:
    """The text first, or the tower that is the whole model; ``notes`` name a tower that cannot be timed."""

    streams: tuple[Stream, ...]
    notes: tuple[str, ...] = ()


def has_towers(model: ModelSpec) -> bool:
    """Whether images or sound pass through a model."""
    return any(part.role in NOT_TOKENS for part in model.blocks)


def only_images(model: ModelSpec) -> bool:
    """Whether a sample is an image and nothing else: a sequence length means nothing to such a model."""
    return all(part.role in IMAGE_ROLES for part in model.blocks)


def streams(run: Run) -> Streams:
    """Streams of one sample. LLaVA-1.5-7B: its text, and a tower of 577 positions (24 x 24 patches and a class token)."""
    if not has_towers(run.model):
        return Streams((Stream(token_work(run.model), run.workload.seq_len),))
    return _with_towers(run)


@lru_cache(maxsize=1024)
def _with_towers(run: Run) -> Streams:
    found, beside, images = lengths(run), towers(run.model), run.workload.images
    text = run.workload.seq_len
    if found is None:
        return Streams((Stream(token_work(run.model), text),), ("vision and audio towers are not timed: no ledger",))
    if not beside:
        return Streams((Stream(token_work(run.model), found[0], images),))
    made = [Stream(token_work(run.model), text)]
    for part, length in zip(run.model.blocks, found, strict=True):
        if part in beside:
            made.append(Stream(tower_work(run.model, part), length, images if part.role in IMAGE_ROLES else 1))
    said = f"towers are timed at {images} image{'s' if images > 1 else ''} a sample"
    return Streams(tuple(made), (said,) if any(part.role in IMAGE_ROLES for part in beside) else ())


def lengths(run: Run) -> tuple[int, ...] | None:
    """Positions of one image, clip or sequence in each run of blocks, by the ledger of its input; None without ledgers."""
    question = question_of(run)
    try:
        found = runs_of(question)
    except NotModelled:
        return None
    element = DTYPE_BYTES[question.precision.stream or question.precision.weights]
    return tuple(
        evaluate(r.profile.boundary, 1, run.workload.seq_len) // (element * width)
        for r in found
        for width in [next(p.shape[-1] for p in r.part.parameters if p.kind in ("linear", "conv1d"))]
    )
