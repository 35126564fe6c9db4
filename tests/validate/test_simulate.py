"""Simulations against real ranks, against published numbers, and folded against whole."""

from __future__ import annotations

from collections.abc import Callable

import numpy
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from estimators.memory import resolve  # noqa: E402
from estimators.result import CATEGORIES  # noqa: E402
from validate.cells import Cell, measure, run_of  # noqa: E402
from validate.cells.models import LLAMA  # noqa: E402
from validate.cells.ranks import Failure  # noqa: E402
from validate.evidence.store import rows  # noqa: E402
from validate.simulate import simulate  # noqa: E402
from validate.simulate.fold import Depth, NotFoldable, folded  # noqa: E402
from validate.simulate.ledger import Ledger  # noqa: E402
from validate.simulate.moments import Trace  # noqa: E402
from validate.simulate.run import measure as measured  # noqa: E402

pytestmark = pytest.mark.engines
KEPT = ("params", "gradients", "master", "optimizer", "buffers")
SMALL = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 13,
    "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 1024, "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}  # fmt: skip


# -- sums of gradients ----------------------------------------------------------------------------------------------


def _shared_by_three(x: torch.Tensor) -> torch.Tensor:
    made = x.exp()
    return made.sin().sum() + made.cos().sum() + made.tanh().sum()


def _residual(x: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        x = x + x.tanh()
    return x.sum()


def _kept_elsewhere(x: torch.Tensor) -> torch.Tensor:
    made = x * 2
    return ((made + made.sin()) + (made + made.cos())).sum()


def _plain_peak(call: Callable[[], None]) -> int:
    """Largest sum of the allocator's own events."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiled:
        call()
    events = [e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]
    total = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        total += event.nbytes()
        peak = max(peak, total)
    return peak


@pytest.mark.parametrize("function", [_shared_by_three, _residual, _kept_elsewhere])
def test_gradients_are_summed_in_place_where_autograd_does_so(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    leaf = torch.randn(1 << 16, requires_grad=True)

    def call() -> None:
        function(leaf).backward()

    call()
    leaf.grad = None
    plain = _plain_peak(call)
    leaf.grad = None
    with Ledger(fakes_only=False) as ledger:
        call()
    total = peak = 0
    for _, change, _ in ledger.events:
        total += change
        peak = max(peak, total)
    assert abs(peak - plain) <= 64  # scalars


# -- real ranks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["fsdp-full-shard", "fsdp1-full-shard", "ddp"])
def test_equals_gloo(strategy: str) -> None:
    from validate.cells import torch_cells

    _equal(Cell(strategy, LLAMA, 2, strategy, {"precision": "bf16-mixed", "checkpointing": "none", "seq_len": 8}),
           torch_cells.run, KEPT)  # fmt: skip


@pytest.mark.parametrize("stage", ["zero1", "zero3"])
def test_equals_gloo_deepspeed(stage: str) -> None:
    pytest.importorskip("deepspeed")
    from validate.cells import deepspeed_cells, deepspeed_engine

    deepspeed_engine.prepare()
    asked = {"precision": "bf16-mixed", "checkpointing": "none", "stack": "deepspeed", "seq_len": 8}
    _equal(Cell(stage, LLAMA, 2, f"{stage}:reduce_bucket_size=50000", asked), deepspeed_cells.run, KEPT)


def _equal(cell: Cell, job: Callable[[Cell], object], categories: tuple[str, ...]) -> None:
    outcome = measure([cell], job)[cell.id]  # type: ignore[arg-type]
    assert not isinstance(outcome, Failure), outcome.reason
    found = simulate(run_of(cell, outcome.spec)).instants["step"].gpu
    real = outcome.measured["step"]
    assert {c: found.get(c, 0) for c in categories} == {c: real.get(c, 0) for c in categories}


# -- published -------------------------------------------------------------------------------------------------------


def test_llama_8b_under_fsdp2_as_published() -> None:
    """A run with torch's own FSDPMemTracker, 8 ranks, HF checkpointing (torch 2.13): shards and peak."""
    found = simulate(resolve("llama-8b", "8xH100", "fsdp-full-shard", "cpu", stack="torch", optimizer="adamw-fused"))
    step = found.instants["step"].gpu
    assert (step["params"], step["gradients"], step["optimizer"]) == (4_015_130_624, 4_015_130_624, 8_030_262_412)
    assert found.instants["reduce"].total == 21_839_265_428
    assert max(c.total for name, c in found.instants.items() if name != "load") == 21_839_265_428
    assert found.residual == 0


@pytest.mark.parametrize(
    ("strategy", "held", "steady"),
    [
        ("zero1", ("params", "master", "optimizer"), 28_105_914_368),
        ("zero2", ("params", "master", "optimizer"), 28_105_914_368),
        ("zero3", ("params", "gradients", "master", "optimizer"), 16_060_522_496),
    ],
)
def test_llama_8b_under_zero_as_published(strategy: str, held: tuple[str, ...], steady: int) -> None:
    """Stored rows of whole runs against the textbook: 2P + 12P/N, and 16P/N, to the byte."""
    row = next((r for r in rows() if r["id"] == f"llama-8b/8xH100/{strategy}/full/full" and "instants" in r), None)
    if row is None:
        pytest.skip("not measured yet: python -m validate.evidence")
    step = row["instants"]["step"]["gpu"]
    assert sum(step[category] for category in held) == steady


# -- folding ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["fsdp-full-shard", "fsdp1-full-shard", "ddp"])
@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_folded_equals_whole(strategy: str, checkpointing: str) -> None:
    run = resolve(SMALL, "8xH100", strategy, "cpu", stack="torch", optimizer="adamw-fused", seq_len=64,
                  checkpointing=checkpointing)  # fmt: skip
    short, whole = simulate(run), simulate(run, fold=False)
    assert short.residual is not None, short.notes
    assert {n: dict(c.gpu) for n, c in short.instants.items()} == {n: dict(c.gpu) for n, c in whole.instants.items()}


TIGHT = (
    "zero3:reduce_bucket_size=200000,max_live_parameters=700000,max_reuse_distance=700000,prefetch_bucket_size=50000,"
    "sub_group_size=300000"
)


def test_zero3_folded_equals_whole_but_for_a_counter_a_sub_group() -> None:
    pytest.importorskip("deepspeed")
    run = resolve({**SMALL, "num_hidden_layers": 16}, "8xH100", TIGHT, "cpu", stack="deepspeed", seq_len=64,
                  checkpointing="full")  # fmt: skip
    short, whole = simulate(run, fold=True), simulate(run, fold=False)
    assert short.residual is not None, short.notes
    for name, found in whole.instants.items():
        assert set(short.instants[name].gpu) == set(found.gpu)
        for category, size in found.gpu.items():
            off = abs(short.instants[name].gpu[category] - size)
            assert off <= (64 if category == "temporaries" else 0), (name, category, off)


def test_steps_that_only_make_states_may_leave_the_network_out() -> None:
    pytest.importorskip("deepspeed")
    run = resolve({**SMALL, "num_hidden_layers": 3}, "8xH100", "zero2:reduce_bucket_size=300000", "cpu",
                  stack="deepspeed", seq_len=64)  # fmt: skip
    assert measured(run, rank=3).instants == measured(run, rank=3, short=False).instants


def _trace(per_block: list[int], layers: int, root: int = 1000) -> Trace:
    """A root's allocation, the same events for each block, all freed: moments of an instant."""
    sizes = [root, *(size for _ in range(layers) for size in per_block)]
    tokens = [0, *(1 + at for _ in range(layers) for at in range(len(per_block))), 99]
    rows = numpy.zeros((len(tokens), 2 * len(CATEGORIES)), dtype=numpy.int64)
    rows[:-1, 0] = numpy.cumsum(sizes)
    return Trace(numpy.array(tokens), rows, numpy.arange(len(tokens)))


def test_refuses_to_fold_what_the_third_depth_does_not_confirm() -> None:
    depths = [Depth(n, {"forward": _trace([64, -16], n)}) for n in (3, 4, 5)]
    found, residual = folded(*depths, 100)
    assert (found["forward"].total, residual) == (1000 + 99 * 48 + 64, 0)
    saturates = Depth(5, {"forward": _trace([64, -16], 5, root=900)})
    with pytest.raises(NotFoldable, match="forward"):
        folded(*depths[:2], saturates, 100)


def test_remembered_results_are_what_torch_makes() -> None:
    """Shapes, strides, dtypes, storages and aliases of operations called twice, beside torch's own fake tensors."""

    def made() -> list[torch.Tensor]:
        x = torch.randn(4, 6, dtype=torch.bfloat16)
        flat = torch.empty(100)
        y = x.float() @ torch.ones(6, 3)
        return [
            x, y, y.t(), y.mul_(2), flat[10:20], flat.narrow(0, 50, 24).view(4, 6), x.expand(2, 4, 6),
            torch.nn.functional.layer_norm(x, (6,)), *torch.split(flat, 30), y.sum(), torch.cat([flat, flat]),
        ]  # fmt: skip

    def described(tensors: list[torch.Tensor]) -> list[object]:
        storages: dict[int, int] = {}
        return [
            (t.shape, t.stride(), t.storage_offset(), t.dtype, t.device, t.requires_grad, t.untyped_storage().nbytes(),
             storages.setdefault(t.untyped_storage()._cdata, len(storages)))
            for t in tensors
        ]  # fmt: skip

    with FakeTensorMode():
        wanted = described(made())
    with FakeTensorMode(), Ledger():
        first, again = made(), made()
        assert described(first) == described(again) == wanted
