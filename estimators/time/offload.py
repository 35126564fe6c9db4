"""What offload adds: PCIe at the node's share, Adam on the CPU, NVMe. Formulas O.1-O.4 of ``docs/formulas-time.md``."""

from __future__ import annotations

from estimators.run import Run
from estimators.time.card import Rates
from estimators.time.constants import CPU_ADAM, HOST_COPY, HOST_SLOT_SHARE, NVME_READ, NVME_WRITE, TORCH_CPU_ADAM
from estimators.time.network import Three, fast_to_slow
from estimators.time.volumes import sizes
from estimators.values import dataclass
from estimators.workload import DTYPE_BYTES

STATE_BYTES = 12  # fp32 master and two moments
COHERENT = 130e9  # bytes/s from which the link to the CPU is not PCIe and does not share a root complex


@dataclass(frozen=True, slots=True)
class Offload:
    """Amounts of one optimizer step: host copies in bytes per GPU, the rest per node.

    ``forward`` and ``backward`` per micro-step and ``sync`` once per step hide behind compute; ``up`` does not.
    """

    forward: float
    backward: float
    sync: float
    up: float
    adam: float  # parameters that the node's CPU updates
    vectorised: bool  # DeepSpeed's CPU Adam rather than torch's
    nvme_read: float
    nvme_write: float

    @property
    def is_empty(self) -> bool:
        return not (self.forward or self.sync or self.adam or self.backward)


NOTHING = Offload(0.0, 0.0, 0.0, 0.0, 0.0, True, 0.0, 0.0)


def host_rate(card: Rates, per_node: int) -> Three:
    """O.1: bytes/s per GPU and direction: as measured here, else its slot, or its share of what the node's
    memory and switches carry.

    8 x A100: min(0.76 x 31, 80 / 8) = 10 GB/s. A DGX-2: 3.0 GB/s each of 16, where one alone gets 12.
    """
    if card.host is not None:
        return card.host
    slot = fast_to_slow(HOST_SLOT_SHARE, card.slot)
    if card.slot > COHERENT:
        return slot
    node = fast_to_slow(HOST_COPY, 1 / per_node)
    return min(slot[0], node[0]), min(slot[1], node[1]), min(slot[2], node[2])


def offload(run: Run) -> Offload:
    """O.2-O.4: what moves for ``+optimizer@...``, ``+params@...`` and checkpoints kept on the host."""
    how, load = run.strategy, run.workload
    forward = backward = 0.0
    if load.checkpointing == "offload":
        forward = backward = _checkpoints(run)
    if not how.optimizer and not how.params:
        return Offload(forward, backward, 0.0, 0.0, 0.0, True, 0.0, 0.0) if forward else NOTHING
    size, settings, shards = sizes(run.model, run.settings.compute_dtype), run.settings, run.shards
    fsdp = how.engine in ("fsdp1", "fsdp2")
    sync = up = adam = read = write = 0.0
    local = min(run.cluster.gpus_per_node, run.ranks)
    share = size.trainable / shards
    ratio = float(settings.knobs.get("ratio", 1.0))
    if how.optimizer or fsdp:
        adam = ratio * min(size.trainable, share * local)
        sync = ratio * share * DTYPE_BYTES[settings.reduce_dtype if fsdp else settings.grad_dtype]
        up = 0.0 if fsdp else ratio * share * DTYPE_BYTES[settings.compute_dtype]
    if how.optimizer == "nvme":
        read = write = STATE_BYTES * adam
    if how.params:
        wide = 2.0 if fsdp and settings.param_dtype == "fp32" and not run.workload.has_adapters else 1.0
        weights = size.gathered / shards * wide
        forward, backward = forward + weights, backward + weights
        if how.params == "nvme":
            read += 2 * load.grad_accum * weights * local
            write += min(size.trainable, share * local) * DTYPE_BYTES[settings.compute_dtype]
    return Offload(forward, backward, sync, up, adam, not fsdp, read, write)


def _checkpoints(run: Run) -> float:
    """Bytes of the block inputs that a micro-step sends to the host: tokens x hidden x 2 per block."""
    hidden = run.model.config.get("hidden_size", 0)
    width = hidden if isinstance(hidden, int) else 0
    return float(run.workload.micro_batch * run.workload.seq_len * run.model.num_layers * width * 2)


def adam_seconds(work: Offload, i: int, own: Three | None = None) -> float:
    """O.3: parameters of a node over the rate of its CPU. 8 G parameters at 1.5 G/s: 5.3 s.

    28-30 bytes a parameter move through DRAM, so a node with usable 120 GB/s updates about 4 G/s. ``own``: what this
    machine measured of DeepSpeed's CPU Adam, or what follows from its cores and DRAM (``host_cpu``).
    """
    rate = fast_to_slow(CPU_ADAM if work.vectorised else TORCH_CPU_ADAM)
    return work.adam / (own if own is not None and work.vectorised else rate)[i]


def nvme_seconds(work: Offload, i: int) -> float:
    """O.4: 12 bytes of state a parameter read and written, parameters at each gather, over the node's disks."""
    return work.nvme_read / fast_to_slow(NVME_READ)[i] + work.nvme_write / fast_to_slow(NVME_WRITE)[i]
