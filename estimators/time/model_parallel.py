"""Memory of tensor, pipeline and data parallel layouts by published formulas, for when data parallelism is not enough.

None of it is an engine that this project measures: Megatron-Core, torchtitan and DeepSpeed with Megatron run such
layouts. Formulas M.1-M.3 of ``docs/formulas-time.md``.
"""

from __future__ import annotations

from collections.abc import Iterator

from estimators.model.spec import ModelSpec
from estimators.run import Run
from estimators.time.shapes import number, text_config, token_work
from estimators.values import dataclass

ENGINES = ("Megatron-Core", "torchtitan", "DeepSpeed with Megatron")
STATE_BYTES, SHARED_BYTES = 6, 12  # weights 16-bit, gradients fp32; master and moments over data parallel ranks
BLOCK, RECOMPUTED = 34, 2  # bytes per s b h of a block: fused kernels and flash attention; its input alone
FITS = 0.9  # of the card: what published totals leave to allocator and context


@dataclass(frozen=True, slots=True)
class Layout:
    """Degrees and bytes of one GPU of the first pipeline stage, which needs most."""

    tensor: int
    pipeline: int
    data: int
    recompute: bool
    state_bytes: int
    activation_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.state_bytes + self.activation_bytes

    def __str__(self) -> str:
        recompute = ", full recompute" if self.recompute else ""
        return f"tensor {self.tensor} x pipeline {self.pipeline} x data {self.data}{recompute}"


def state_bytes(params: int, tensor: int, pipeline: int, data: int) -> int:
    """M.1: Psi / (t p) x (6 + 12 / d), Megatron with its distributed optimizer.

    >>> state_bytes(70_000_000_000, 8, 2, 8)
    32812500000
    """
    own = -(-params // (tensor * pipeline))
    return own * STATE_BYTES + own * SHARED_BYTES // data


def activation_bytes(
    layers: int, hidden: int, vocabulary: int, seq_len: int, micro_batch: int, tensor: int, recompute: bool
) -> int:
    """M.2: Korthikanti et al. (arXiv 2205.05198) with sequence parallelism and flash attention, first stage of 1F1B.

    34 s b h L / t, or 2 s b h L / t + one block with full recompute: the stage holds p micro-batches of L / p blocks.
    M.3: + 4 s b (h + v) / t for the head where the pipeline has one stage (counted always: the safe side).

    >>> activation_bytes(80, 8192, 128256, 4096, 1, 8, True) // 10**6
    1093
    """
    block = seq_len * micro_batch * hidden
    held = RECOMPUTED * block * layers + BLOCK * block if recompute else BLOCK * block * layers
    return held // tensor + 4 * seq_len * micro_batch * (hidden + vocabulary) // tensor


def hiding_tokens(flops_per_s: float, bytes_per_s: float) -> float:
    """M.4: tokens that a GPU must have in a micro-step for gathers of 16-bit weights to hide behind computing.

    Forward: 2 bytes of each weight over what a node's adapters carry together, against 2 FLOPs of each weight and token:
    tokens = product rate / bytes per second. The ultra-scale playbook has the same without bytes per element; it saw
    pure ZeRO-3 lose efficiency from about 512 GPUs of 8 x H100 nodes at a batch of 1M tokens, 2,048 a GPU.

    >>> round(hiding_tokens(794.5e12, 0.8 * 8 * 50e9))
    2483
    """
    return flops_per_s / bytes_per_s


def layouts(
    model: ModelSpec, gpus: int, per_node: int, seq_len: int, micro_batch: int, capacity: int
) -> Iterator[Layout]:
    """Layouts that fit, least model parallelism first: tensor inside a node, pipeline across, data for the rest."""
    config = text_config(model.config)
    hidden, work = number(config, "hidden_size", "d_model", "n_embd"), token_work(model)
    heads = number(config, "num_attention_heads", "n_head", "n_heads", "num_heads") or 1
    for size in range(1, gpus.bit_length() + 1):
        for tensor in (t for t in (16, 8, 4, 2, 1) if t <= min(per_node, 1 << size) and heads % t == 0):
            pipeline = (1 << size) // tensor
            if gpus % (tensor * pipeline) or pipeline > work.layers:
                continue
            data = gpus // (tensor * pipeline)
            for recompute in (False, True):
                held = activation_bytes(work.layers, hidden, work.vocabulary, seq_len, micro_batch, tensor, recompute)
                states = state_bytes(model.num_params, tensor, pipeline, data)
                if states + held <= FITS * capacity:
                    yield Layout(tensor, pipeline, data, recompute, states, held)


def rough_bytes(run: Run) -> float:
    """States (ZeRO paper) and activations (M.2) of one GPU of a data-parallel run: low, and cheap enough for a sweep.

    Stage 0 16 Psi, 1 4 Psi + 12 Psi / N, 2 2 Psi + 14 Psi / N, 3 16 Psi / N; frozen weights 2, packed ones 0.5 bytes.
    """
    model, load, shards = run.model, run.workload, run.shards
    trains, frozen = model.num_trainable, model.num_params - model.num_trainable
    stage = 3 if run.strategy.sharding or run.strategy.stage == 3 else run.strategy.stage
    states = {0: 16.0, 1: 4 + 12 / shards, 2: 2 + 14 / shards, 3: 16 / shards}[stage] * trains
    packed = 0.5 if load.method == "qlora" else 2.0
    held = packed * frozen / (shards if stage == 3 else 1)
    config, work = text_config(model.config), token_work(model)
    hidden = number(config, "hidden_size", "d_model", "n_embd")
    return states + held + activation_bytes(
        work.layers, hidden, work.vocabulary if load.loss == "plain" else 0, load.seq_len, load.micro_batch, 1,
        load.checkpointing != "none",
    )  # fmt: skip
