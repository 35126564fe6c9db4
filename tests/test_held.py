"""Formulas for every batch and sequence say what plain numbers say at one; and there are few of them at any depth."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import pytest

from estimators import estimate, parse_cluster, resolve_model
from estimators.activations.formulas import Formula, between, covers, larger
from estimators.activations.network import Network
from estimators.activations.tape import MONOMIALS, evaluate
from estimators.engines import weighed
from estimators.held import Shared, largest, plain
from estimators.memory import default_strategies
from estimators.values import replace

QUESTIONS = (
    ("llama-8b", "zero3", {}),
    ("llama-8b", "fsdp1-full-shard", {"method": "lora", "versions": "transformers=4.48.0"}),
    ("gemma-2-9b", "zero1", {"checkpointing": "every-2", "attention": "eager"}),
    ("gpt2", "ddp", {"checkpointing": "none", "grad_accum": 4}),
    ("llava-7b", "fsdp-full-shard", {"checkpointing": "none"}),
    ("qwen2-vl-2b", "zero2", {"checkpointing": "selective"}),
    ("t5-small", "fsdp-shard-grad-op", {"checkpointing": "none"}),
    ("whisper-small", "zero3", {}),
    ("llama-8b", "zero2", {"loss": "fused"}),
    ("mixtral-8x7b", "fsdp-full-shard", {"stack": "torchtitan", "checkpointing": "selective"}),
)
SIZES = ((1, 1, 1), (1, 2048, 1), (3, 777, 2), (64, 4096, 1))


@pytest.mark.parametrize(("model", "strategy", "fields"), QUESTIONS)
@pytest.mark.parametrize(("batch", "seq", "images"), SIZES)
def test_the_largest_moment_is_the_one_that_plain_numbers_find(
    model: str, strategy: str, fields: dict[str, object], batch: int, seq: int, images: int
) -> None:
    """The candidate and its bytes, each instant: every moment counted at this batch and sequence, the first of equals."""
    run = estimate(model, "8xA100", strategy, micro_batch=batch, seq_len=seq, images=images, **fields).run  # type: ignore[arg-type]
    network, shared = Network.of(run), Shared.of(run)
    formulas = [(name, *largest(choices, batch, seq)) for name, choices in shared.frame(run)]
    assert formulas == shared.moments(run) == plain(run, network)
    for name, size, held in formulas:
        site, terms, _, _ = max(weighed(run)[name], key=lambda c: c[2] + network.size(c[0]))  # type: ignore[operator]
        assert (held.site, held.terms) == (site, terms)
        shown = (*held.terms, *network.terms(site), *held.beside)
        assert size == sum(t.bytes for t in shown if t.place == "gpu")


def test_no_more_formulas_at_greater_depth() -> None:
    """What an estimate evaluates: as many polynomials for 800 layers as for 80, give or take a bucket's irregularity."""
    model, cluster = resolve_model("llama-70b"), parse_cluster("8x8xH100")
    counts = []
    for layers in (80, 800):
        deep = replace(model, parts=tuple(replace(p, count=layers) if p.is_block else p for p in model.parts))
        runs = [estimate(deep, cluster, name).run for name in default_strategies(cluster)]
        counts.append([sum(len(choices) for _, choices in Shared.of(run).frame(run)) for run in runs])
    assert all(many <= few + 6 for few, many in zip(*counts, strict=True)) and max(counts[1]) < 40


def test_arithmetic_of_formulas() -> None:
    """Random sums, products and maxima against numbers; a polynomial said to be covered is nowhere the larger one."""
    random = Random(5)

    def some() -> tuple[int, ...]:
        return tuple(random.randint(-3, 3) for _ in MONOMIALS)

    points = [(b, s) for b in (1, 2, 9, 40) for s in (1, 3, 64)]
    for _ in range(3000):
        a, b, c = some(), some(), some()
        whole = larger(Formula((a,)) * 3 + Formula((b,)) - 7, Formula((c,)), 5)
        assert isinstance(whole, Formula)
        for batch, seq in points:
            x, y, z = (evaluate(one, batch, seq) for one in (a, b, c))
            assert max(evaluate(size, batch, seq) for size in whole.sizes) == max(3 * x + y - 7, z, 5)
            if covers(a, b):
                assert x > y or (x == y and sum(a) == sum(b))
            if between(a, b, c):
                assert x <= max(y, z) and (x < max(y, z) or y >= x)
        shares = [Fraction(i, 12) for i in range(12)]
        if any(all(s * r + (1 - s) * q >= p for p, q, r in zip(a, b, c, strict=True)) for s in shares):
            assert between(a, b, c)
