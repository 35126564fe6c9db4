"""What ranks one candidate before another: seconds per token, or, without a time, bytes sent per token.

The second is a stand-in: it knows recomputing, offload and links, not how much of it hides behind computing.
"""

from __future__ import annotations

from estimators.memory import Estimate
from estimators.strategy import Strategy
from estimators.time import StepTime, Unknown, step_time
from estimators.values import dataclass
from estimators.workload import DTYPE_BYTES

# A byte between nodes against one inside a node: NVLink 3/4 (300-450 GB/s) over a NIC of 400 Gbit/s per GPU (50 GB/s).
BETWEEN_NODES = 6.0
SECONDS = "seconds per token"
PLACES = {None: 0, "cpu": 1, "nvme": 2}
PLACE_WORDS = ("on the GPU", "in host RAM", "on NVMe")


@dataclass(frozen=True, slots=True, order=True)
class Cost:
    """Compared in this order. With a time model ``offload`` and ``recompute`` are 0: the seconds hold them."""

    offload: int
    recompute: int
    value: float
    unit: str

    def within(self, other: Cost, share: float) -> bool:
        """Whether this costs at most ``share`` more than ``other``."""
        if (self.offload, self.recompute) != (other.offload, other.recompute):
            return (self.offload, self.recompute) < (other.offload, other.recompute)
        return self.value <= other.value * (1 + share)

    def against(self, other: Cost) -> str:
        """This beside another, in words: ``1.31 x the seconds per token``."""
        if self.offload != other.offload:
            return "more offload" if self.offload > other.offload else "less offload"
        if self.recompute != other.recompute:
            return "it recomputes the forward pass" if self.recompute else "it does not recompute the forward pass"
        if not other.value:
            return f"{self.value:.3g} {self.unit}"
        times = self.value / other.value
        digits = 3 if abs(times - 1.1) < 0.005 else 2  # on which side of a tenth it is must be seen
        return f"{times:.{digits}f} x the {self.unit}"


def offloaded(strategy: Strategy) -> tuple[int, int]:
    """Where optimizer and parameters are: 0 on the GPU, 1 in host RAM, 2 on NVMe. FSDP moves both together."""
    params = PLACES[strategy.params]
    return params if strategy.engine in ("fsdp1", "fsdp2") else PLACES[strategy.optimizer], params


def offload_rank(strategy: Strategy) -> int:
    """0 where nothing is offloaded; whoever offloads more has more. The optimizer alone and the parameters alone are
    equal: neither offload contains the other.
    """
    return sum(offloaded(strategy))


def offload_words(strategy: Strategy) -> str:
    """``optimizer in host RAM``, ``parameters and optimizer in host RAM``; empty where nothing is offloaded."""
    optimizer, params = offloaded(strategy)
    if optimizer and optimizer == params:
        return f"parameters and optimizer {PLACE_WORDS[params]}"
    each = (("optimizer", optimizer), ("parameters", params))
    return " and ".join(f"{what} {PLACE_WORDS[place]}" for what, place in each if place)


def cost_of(estimate: Estimate) -> Cost:
    """Seconds per token where the estimate has a time, else bytes that a GPU sends per token of its own."""
    rate = tokens_per_second(estimate)
    if rate:
        return Cost(0, 0, 1 / rate, SECONDS)
    run = estimate.run
    work = run.workload
    tokens = work.micro_batch * work.grad_accum * work.seq_len
    recompute = 0 if work.checkpointing == "none" else 1
    return Cost(offload_rank(run.strategy), recompute, bytes_sent(estimate) / tokens, "bytes sent per token")


def tokens_per_second(estimate: Estimate) -> float | None:
    """Expected tokens per second and GPU, or None where a figure of the card is missing."""
    time: StepTime | Unknown = getattr(estimate, "time", None) or step_time(estimate.run)
    return None if isinstance(time, Unknown) else time.tokens_per_s_per_gpu.expected


def bytes_sent(estimate: Estimate) -> float:
    """Bytes that one GPU sends in an optimizer step, those between nodes weighted.

    With g bytes of gradients, p bytes of parameters as gathered and k micro-steps: replicated 2g; ZeRO-1 g + p';
    ZeRO-2 k g + p' (p' the trainable part); SHARD_GRAD_OP k (p + g); full shard and ZeRO-3 k (2p + g).
    Source: Rajbhandari et al. 2020, section 7; torch.distributed.fsdp.
    """
    run = estimate.run
    strategy, steps = run.strategy, run.workload.grad_accum
    width = DTYPE_BYTES.get(run.settings.compute_dtype, 2)
    p, trained = run.model.num_params * width, run.model.num_trainable * width
    g = run.model.num_trainable * DTYPE_BYTES.get(run.settings.reduce_dtype, 2)
    weight = BETWEEN_NODES if run.cluster.nodes > 1 else 1.0
    if run.ranks == 1:
        return 0.0
    if strategy.sharding == "hybrid-shard":
        return steps * (2 * p + g) + weight * 2 * g / max(run.shards, 1)
    if strategy.sharding == "shard-grad-op":
        return weight * steps * (p + g)
    if strategy.sharding == "full-shard" or strategy.stage == 3:
        return weight * steps * (2 * p + g)
    if strategy.stage == 2:
        return weight * (steps * g + trained)
    return weight * (g + trained if strategy.stage == 1 else 2 * g)
