"""Cells of the torch engines: one process, DDP, FSDP2 and FSDP1, each knob that changes what an engine holds."""

from __future__ import annotations

from typing import Any

from estimators.run import Run
from validate.cells import Cell, Measured, Outcome, run_of
from validate.cells.models import LLAMA, LLAMA_SMALL_HEAD, QWEN_TIED, add_lora, build, spec_of
from validate.cells.torch_engines import TorchEngine, wrapped

LORA = {"method": "lora", "lora_rank": 4}
TOKENS = 8
FLAT = 9000  # elements: a vector longer than that, made by autograd under FSDP1, is a unit's flat gradient
STEPS = {"ddp": 3}  # the last is read; states exist from the second on, DDP rebuilds its buckets in the second


def _cells() -> list[Cell]:
    fp32, bf16, mixed = {"precision": "fp32"}, {"precision": "bf16"}, {"precision": "bf16-mixed"}
    twice = {**mixed, "grad_accum": 2}
    cells = []

    def add(name: str, strategy: str, asked: dict[str, Any], ranks: int = 2, config: Any = LLAMA, **knobs: Any) -> None:
        cells.append(Cell(f"{name}-{ranks}", config, ranks, strategy, asked, knobs))

    add("single-mixed", "single", mixed, 1)
    add("single-bf16-accumulate", "single", {**bf16, "grad_accum": 2}, 1, QWEN_TIED)
    add("ddp-mixed", "ddp", mixed)
    add("ddp-view", "ddp:gradient_as_bucket_view", mixed)
    add("ddp-static", "ddp:static_graph", fp32)
    add("ddp-small-buckets", "ddp:bucket_cap_mb=1", fp32)
    add("ddp-unused", "ddp:find_unused_parameters", fp32)
    add("ddp-bf16-tied", "ddp", bf16, 4, QWEN_TIED)
    add("ddp-accumulate", "ddp", twice)
    add("ddp-accumulate-sync", "ddp:sync_each_batch", twice)
    add("ddp-accumulate-view", "ddp:gradient_as_bucket_view", twice)
    add("ddp-lora", "ddp", {**mixed, **LORA})
    for engine in ("fsdp", "fsdp1"):
        add(f"{engine}-mixed", f"{engine}-full-shard", mixed)
        add(f"{engine}-mixed", f"{engine}-full-shard", mixed, 4)
        add(f"{engine}-fp32", f"{engine}-full-shard", fp32)
        add(f"{engine}-bf16", f"{engine}-full-shard", bf16)
        add(f"{engine}-tied", f"{engine}-full-shard", mixed, 4, QWEN_TIED)
        add(f"{engine}-grad-op", f"{engine}-shard-grad-op", mixed)
        add(f"{engine}-hybrid", f"{engine}-hybrid-shard:shard=2", mixed, 4)
        add(f"{engine}-accumulate", f"{engine}-full-shard", twice)
        add(f"{engine}-accumulate-sync", f"{engine}-full-shard:sync_each_batch", twice)
        add(f"{engine}-accumulate-bf16", f"{engine}-full-shard", {**bf16, "grad_accum": 2})
        ahead = 2 if engine == "fsdp" else 1  # units; FSDP1 knows only whether
        add(f"{engine}-prefetch", f"{engine}-full-shard:forward_prefetch={ahead}", mixed, 2, LLAMA_SMALL_HEAD)
        add(f"{engine}-no-backward-prefetch", f"{engine}-full-shard:backward_prefetch=none", mixed, 2, LLAMA_SMALL_HEAD)
        add(f"{engine}-blocks", f"{engine}-full-shard", mixed, 2, LLAMA_SMALL_HEAD)
        add(f"{engine}-whole", f"{engine}-full-shard:wrap=none", mixed)
        add(f"{engine}-wrap-embedding", f"{engine}-full-shard", mixed, wrap="blocks+embedding")
        add(f"{engine}-wrap-head", f"{engine}-full-shard", mixed, wrap="blocks+embedding+head")
    trainer = {**mixed, "stack": "trainer", "checkpointing": "none"}
    add("fsdp-trainer", "fsdp-full-shard", trainer)
    add("fsdp-trainer-tied", "fsdp-full-shard", trainer, 2, QWEN_TIED)
    add("fsdp-trainer-grad-op", "fsdp-shard-grad-op", trainer)
    add("fsdp-lora", "fsdp-full-shard", {**mixed, **LORA})
    add("fsdp1-lora", "fsdp1-full-shard", {**fp32, **LORA})
    add("fsdp-reduce-bf16", "fsdp-full-shard", {**mixed, "reduce_dtype": "bf16"})
    add("fsdp-hybrid-reduce-bf16", "fsdp-hybrid-shard:shard=2", {**mixed, "reduce_dtype": "bf16"}, 4)
    add("fsdp-reshard-2", "fsdp-full-shard:reshard_after_forward=2", mixed, 4)
    add("fsdp-offload", "fsdp-full-shard+params@cpu", mixed)
    add("fsdp1-no-shard", "fsdp1-no-shard", mixed)
    add("fsdp1-backward-post", "fsdp1-full-shard:backward_prefetch=post", mixed)
    add("fsdp1-flat", "fsdp1-full-shard:use_orig_params=false", mixed)
    add("fsdp1-no-limit", "fsdp1-full-shard:limit_all_gathers=false", mixed)
    return cells


CELLS = _cells()


def run(cell: Cell) -> Outcome:
    """Train a few steps on this rank under a census; the last step is what counts."""
    import gc

    import torch

    from validate.census import Census

    gc.collect()  # what an earlier cell left must not be freed inside this one
    module_spec = _spec(cell)
    settled = run_of(cell, module_spec)
    shapes = {p.shape for _, p in module_spec.named_parameters() if p.trainable}
    stored = {str(p.dtype) for _, p in module_spec.named_parameters() if p.trainable}
    dtypes = stored if settled.settings.autocast else {settled.settings.compute_dtype}
    computed = {{"fp32": "float32", "bf16": "bfloat16"}[name] for name in dtypes}

    def label(block: Any) -> str:
        """Gradients that are never anybody's ``.grad``: parts of a sum, or copied at once. No activation has 8 rows."""
        shape = tuple(size for size in block.shape if size != 1)
        is_flat = cell.engine == "fsdp1" and len(shape) == 1 and shape[0] > FLAT
        is_gradient = (shape in shapes or is_flat) and block.dtype in computed and "torch_cells.py:_train" in block.site
        return "gradients" if is_gradient else ""

    with Census(label) as census:
        with census.phase("load"):
            made = _model(cell, settled)
            census.own("params", made.parameters())
            census.own("buffers", made.buffers())
            engine = wrapped(made, settled, census)
        census.own("params", engine.stored_parameters())
        optimizer = torch.optim.AdamW(engine.module.parameters(), lr=1e-3, fused=True)
        try:
            return Outcome(_train(cell, settled, engine, optimizer, census), module_spec)
        finally:
            engine.close()


def _model(cell: Cell, settled: Run) -> Any:
    made = build(
        cell.config, settled.settings.frozen_dtype if settled.workload.has_adapters else settled.settings.load_dtype
    )
    return (
        add_lora(made, settled.workload.lora_rank, settled.settings.adapter_dtype)
        if settled.workload.has_adapters
        else made
    )


def _spec(cell: Cell) -> Any:
    """The spec of the same module on the meta device; its dtypes are those that the settings ask for."""
    import torch

    from estimators.model.spec import ModelSpec

    empty = ModelSpec("", "", "", (), {})
    with torch.device("meta"):
        return spec_of(_model(cell, run_of(cell, empty)), cell.config)


def _train(cell: Cell, settled: Run, engine: TorchEngine, optimizer: Any, census: Any) -> Measured:
    import torch

    vocabulary = int(cell.config["vocab_size"])
    micro_steps = settled.workload.grad_accum
    for _ in range(STEPS.get(cell.engine, 2)):
        for micro in range(micro_steps):
            ids = torch.randint(0, vocabulary, (1, TOKENS))
            with engine.micro_step(last=micro == micro_steps - 1):
                with census.phase("forward"), engine.forward_context():
                    loss = engine.module(input_ids=ids, labels=ids).loss
                with census.phase("backward"):
                    loss.backward()
                del loss
            census.own("gradients", (p.grad for p in engine.module.parameters()))
            reduced = census.now()
        optimizer.step()
        for state in optimizer.state.values():
            census.own("optimizer", (t for t in state.values() if isinstance(t, torch.Tensor)))
        after = census.now()
        optimizer.zero_grad(set_to_none=True)
    return {
        "load": _engines(census.peak("load").bytes),
        "forward": _engines(census.peak("forward").bytes),
        "backward": _engines(census.peak("backward", outside="reduce").bytes),
        "reduce": _engines((census.peak("backward", region="reduce") if engine.reduces_in_calls else reduced).bytes),
        "step": _engines(after.bytes),
    }


def _engines(found: dict[str, int]) -> dict[str, int]:
    """Without the network's own tensors."""
    return {label: size for label, size in found.items() if label != "other"}
