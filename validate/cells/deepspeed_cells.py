"""Cells of DeepSpeed: stages 0 to 3, offload, ZeRO++ secondary shards, each knob that changes what an engine holds."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from estimators.run import Run
from validate.cells import Cell, Measured, Outcome, run_of
from validate.cells.deepspeed_engine import SITES, config_of, forget, label_gradient, label_owned, prepare, watch
from validate.cells.models import LLAMA, QWEN_TIED, add_lora, build, spec_of

LORA = {"method": "lora", "lora_rank": 4}
TOKENS = 8
STEPS = 3  # the last is read: stage 3 prefetches from the third forward on
SCALAR = 16  # elements: norms, counters and flags are not anybody's memory


def _cells() -> list[Cell]:
    mixed: Mapping[str, Any] = {"precision": "bf16-mixed", "checkpointing": "none", "stack": "deepspeed"}
    plain = {**mixed, "stack": "accelerate", "optimizer": "adamw-fused"}  # not DeepSpeed's FusedAdam: another wrapper
    twice, fp32, lora = {**mixed, "grad_accum": 2}, {**mixed, "precision": "fp32"}, {**mixed, **LORA}
    small, tiny = "reduce_bucket_size=50000", "reduce_bucket_size=1000"
    cells: list[Cell] = []

    def add(name: str, strategy: str, asked: Mapping[str, Any] = mixed, ranks: int = 2, config: Any = LLAMA) -> None:
        cells.append(Cell(f"{name}-{ranks}", config, ranks, strategy, asked))

    add("zero0", "zero0", plain)
    add("zero0-fp32", "zero0", {**plain, "precision": "fp32", "grad_accum": 2}, 2, QWEN_TIED)
    for stage in ("zero1", "zero2"):
        add(stage, f"{stage}:{small}")
        add(stage, f"{stage}:{small}", ranks=4)
        add(f"{stage}-large-bucket", f"{stage}:reduce_bucket_size=1000000")
        add(f"{stage}-tiny-bucket", f"{stage}:{tiny}", ranks=4)
        add(f"{stage}-overlap", f"{stage}:{small},overlap_comm=true", ranks=4)
        add(f"{stage}-accumulate", f"{stage}:{small}", twice)
        add(f"{stage}-accumulate-overlap", f"{stage}:{small},overlap_comm=true", twice)
        add(f"{stage}-fp32", f"{stage}:{small}", fp32)
        add(f"{stage}-tied", f"{stage}:{small}", ranks=4, config=QWEN_TIED)
        add(f"{stage}-lora", f"{stage}:{small}", lora)
        add(f"{stage}-accum-fp32", f"{stage}:{small},grad_accum_dtype=fp32")
        add(f"{stage}-accum-fp32-accumulate", f"{stage}:{small},grad_accum_dtype=fp32", twice)
        add(f"{stage}-offload", f"{stage}:{small}+optimizer@cpu")
        add(f"{stage}-offload-accumulate", f"{stage}:{small}+optimizer@cpu", twice)
        add(f"{stage}-not-contiguous", f"{stage}:{small},contiguous_gradients=false")
        add(f"{stage}-all-reduce", f"{stage}:{small},reduce_scatter=false")
        add(f"{stage}-round-robin", f"{stage}:{small},round_robin_gradients=true", ranks=4)
    add("zero2-bf16", f"zero2:{small}", {**mixed, "precision": "bf16"})
    whole, none = f"zero3:{small}", f"zero3:{small},param_persistence_threshold=0"
    add("zero3", whole)
    add("zero3", none, ranks=4)
    add("zero3-threshold-0", none)
    add("zero3-threshold-100", f"zero3:{small},param_persistence_threshold=100", config=QWEN_TIED)
    add("zero3-checkpointing", none, {**mixed, "checkpointing": "full"})
    add("zero3-no-reuse", f"{none},max_reuse_distance=0,prefetch_bucket_size=0")
    add("zero3-some-reuse", f"{none},max_reuse_distance=100000,prefetch_bucket_size=30000,max_live_parameters=200000")
    add("zero3-some-reuse-checkpointing", f"{none},max_reuse_distance=100000,prefetch_bucket_size=30000",
        {**mixed, "checkpointing": "full"})  # fmt: skip
    add("zero3-tiny-bucket", f"zero3:{tiny},param_persistence_threshold=0")
    add("zero3-large-bucket", "zero3:reduce_bucket_size=1000000,param_persistence_threshold=0")
    add("zero3-no-overlap", f"{none},overlap_comm=false")
    add("zero3-accumulate", none, twice)
    add("zero3-fp32", none, fp32)
    add("zero3-tied", none, ranks=4, config=QWEN_TIED)
    add("zero3-lora", none, lora)
    add("zero3-sub-groups", f"{none},sub_group_size=30000")
    add("zero3-accum-fp32", f"{none},grad_accum_dtype=fp32")
    add("zero3-offload", f"{none}+optimizer@cpu")
    add("zero3-offload-sub-groups", f"{none},sub_group_size=30000+optimizer@cpu")
    add("zero3-checkpointing-lora", none, {**lora, "checkpointing": "full"})
    add("zero3-offload-all", f"{none}+optimizer@cpu+params@cpu", twice)
    add("zero3-offload-params", f"{none}+params@cpu")
    add("zero3-hpz", f"{none},hpz=2", ranks=4)
    add("zero3-init", f"{none},zero_init=true")
    add("zero3-bf16", none, {**mixed, "precision": "bf16"})
    return cells


def _nvme() -> list[Cell]:
    """States, or states and parameters, on a disk: what is on the GPU, in host buffers, and in files."""
    mixed: Mapping[str, Any] = {"precision": "bf16-mixed", "checkpointing": "none", "stack": "deepspeed"}
    zero3 = "zero3:reduce_bucket_size=50000,param_persistence_threshold=0"
    small = "param_buffer_size=2000000"
    places = {
        "optimizer": f"{zero3}+optimizer@nvme",
        "optimizer-sub-groups": f"{zero3},sub_group_size=1000000+optimizer@nvme",
        "params": f"{zero3},{small}+optimizer@cpu+params@nvme",
        "all": f"{zero3},{small}+optimizer@nvme+params@nvme",
    }
    # wide enough for shards of at least 1 MiB: smaller ones stay in RAM
    config = {**LLAMA, "hidden_size": 576, "intermediate_size": 2000, "vocab_size": 4096}
    return [Cell(f"zero3-nvme-{name}-2", config, 2, strategy, mixed) for name, strategy in places.items()]


CELLS = _cells()
NVME = _nvme()


def run(cell: Cell) -> Outcome:
    """Train a few steps on this rank under a census; of each instant the rank that holds most."""
    import torch.distributed as dist

    prepare()
    spec = _spec(cell)
    measured = _measured(cell, run_of(cell, spec))
    everywhere: list[Any] = [None] * cell.ranks
    dist.all_gather_object(everywhere, measured)
    return Outcome({i: max((m[i] for m in everywhere), key=lambda found: sum(found.values())) for i in measured}, spec)


def _spec(cell: Cell) -> Any:
    import torch

    from estimators.model.spec import ModelSpec

    with torch.device("meta"):
        return spec_of(_model(cell, run_of(cell, ModelSpec("", "", "", (), {}))), cell.config)


def _model(cell: Cell, settled: Run) -> Any:
    made = build(cell.config, settled.settings.load_dtype)
    if settled.workload.checkpointing == "full":
        made.gradient_checkpointing_enable()
    return (
        add_lora(made, settled.workload.lora_rank, settled.settings.adapter_dtype)
        if settled.workload.has_adapters
        else made
    )


def _measured(cell: Cell, settled: Run) -> Measured:
    import deepspeed

    from validate.census import OTHER, Block, Census

    embedding = (cell.config["vocab_size"], cell.config["hidden_size"])
    tied = bool(cell.config.get("tie_word_embeddings"))

    def label(block: Block) -> str:
        numel = 1
        for size in block.shape:
            numel *= size
        if numel <= SCALAR:
            return OTHER
        if tied and block.shape == embedding and "backward" in block.site:
            return "gradients"  # half of a tied gradient, which waits in autograd
        return next((name for piece, name in SITES.items() if piece in block.site), OTHER)

    with Census(label) as census, tempfile.TemporaryDirectory() as disk:
        with census.phase("load"):
            engine = _engine(deepspeed, cell, settled, census, disk)
        label_owned(engine, census, settled.settings.optimizer_impl == "fused")
        undo = watch(engine, census)
        try:
            found = _trained(cell, settled, engine, census)
            on_disk = sum(path.stat().st_size for path in Path(disk).rglob("*") if path.is_file())
            return {name: {**sums, "nvme": on_disk} if on_disk else sums for name, sums in found.items()}
        finally:
            for step in undo:
                step()
            engine.destroy()
            forget()


def _engine(deepspeed: Any, cell: Cell, settled: Run, census: Any, disk: str) -> Any:
    from contextlib import nullcontext

    config = config_of(settled, disk)
    is_cut = settled.settings.knobs.get("zero_init")
    with deepspeed.zero.Init(config_dict_or_path=config) if is_cut else nullcontext():
        made = _model(cell, settled)
    census.own("params", (p.data for p in made.parameters()))
    census.own("params", (getattr(p, "ds_tensor", None) for p in made.parameters()))
    trained = [p for p in made.parameters() if p.requires_grad]
    engine, *_ = deepspeed.initialize(model=made, config=config, model_parameters=trained)
    return engine


@contextmanager
def _loss_region(engine: Any, census: Any) -> Iterator[None]:
    """A region from the moment at which the head is about to be fetched to the end of forward."""
    import torch

    with ExitStack() as stack:

        def begin(*_: Any) -> None:
            stack.enter_context(census.region("loss"))
            torch.empty(1, dtype=torch.uint8)  # a census looks only where something happens

        hook = engine.module.get_output_embeddings().register_forward_pre_hook(begin, prepend=True)
        stack.callback(hook.remove)
        yield


def _trained(cell: Cell, settled: Run, engine: Any, census: Any) -> Measured:
    import torch

    micro_steps = settled.workload.grad_accum
    for _ in range(STEPS):
        for _micro in range(micro_steps):
            ids = torch.randint(0, int(cell.config["vocab_size"]), (1, TOKENS))
            with census.phase("forward"), _loss_region(engine, census):
                loss = engine(input_ids=ids, labels=ids).loss
            label_owned(engine, census, settled.settings.optimizer_impl == "fused")
            with census.phase("backward"):
                engine.backward(loss)
            del loss
            for parameter in engine.module.parameters():
                label_gradient(parameter, census)
            label_owned(engine, census, settled.settings.optimizer_impl == "fused")
            with census.phase("step"):
                engine.step()
            label_owned(engine, census, settled.settings.optimizer_impl == "fused")
    found = {
        "load": census.peak("load"),
        "forward": census.peak("forward", outside="loss"),
        "loss": census.peak("forward", region="loss"),
        "backward": census.peak("backward", outside="reduce"),
        "reduce": census.peak("backward", region="reduce"),
        "step": census.peak("step"),
        "save": census.now(),
    }
    return {name: {k: v for k, v in moment.bytes.items() if k != "other"} for name, moment in found.items()}
