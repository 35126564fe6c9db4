"""What a process holds beside PyTorch's tensors: context, communicators, cuBLAS workspace, the allocator's reserve.

None of it follows from shapes. Each figure is an interval from measurements, with its conditions, number of
observations and source in the tables below; where nothing was measured, the row says what it was taken from. The
ratios of the reserve are printed by ``docs/evidence/runtime.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from estimators.cluster import Cluster, Gpu
from estimators.result import Interval, Term
from estimators.run import Run, Settings
from estimators.units import GIB, MIB
from estimators.values import dataclass

if TYPE_CHECKING:
    from estimators.calibration import Calibration

MOST_KNOWN = 4096


@dataclass(frozen=True, slots=True)
class Overhead:
    """One amount outside torch's counters, in bytes of one GPU."""

    name: str
    low: float
    expected: float
    high: float
    source: str


@dataclass(frozen=True, slots=True)
class Range:
    """A measured interval: GiB, or a ratio where the table says so. ``n`` observations; 0 is an inference."""

    low: float
    expected: float
    high: float
    n: int
    source: str
    date: str


# GiB of a CUDA context under lazy loading (CUDA 11.7 and later, torch 1.13 and later), by compute capability. Low is a
# bare context, high one with a training run's kernels loaded. A figure "by difference" is an out-of-memory message's
# process memory less what torch had allocated and cached.
CONTEXT = {
    "7.0": Range(0.25, 0.30, 0.60, 1, "nearest: P100 0.30 by difference, andimarafioti/florence2-finetuning issue 17",
                 "2024-08"),
    "7.5": Range(0.12, 0.14, 0.40, 3, "T4: 0.14 and 0.13 by difference, FoundationVision/GenerateU issue 10, "
                 "Zheng-Chong/CatVTON issue 133; 0.14 fitcheck", "2025-11"),
    "8.0": Range(0.40, 0.50, 1.07, 5, "A100: 0.40 bare, awslabs/keys_values issue 92; 0.47 ml-engineering (torch 2.1); "
                 "0.49 AgileRL; 0.49 by difference, TianheWu/CoSeR issue 10; at most 1.07 in a full card's training "
                 "run, fms-acceleration benchmarks (torch 2.4.1)", "2025-01"),
    "8.6": Range(0.20, 0.40, 0.80, 0, "nearest: compute capability 8.9", "2026-08"),
    "8.9": Range(0.22, 0.42, 0.80, 3, "L4 0.22 AgileRL; RTX 6000 Ada 0.42 bare, unslothai/unsloth-zoo pull request "
                 "1053 (torch 2.10); RTX 4090 0.49 by difference, 3DTopia/Phidias-Diffusion issue 8", "2026-08"),
    "9.0": Range(0.45, 0.60, 1.20, 0, "nearest: A100, for a larger set of kernels", "2025-01"),
}  # fmt: skip
CONTEXT_ELSEWHERE = Range(0.15, 0.55, 1.20, 0, "not measured on this card; span of those that were", "2026-08")

# GiB of one NCCL communicator with default settings. It grows with channels x peers, channels with the links
# (NVIDIA/nccl issues 864 and 986), and is not shared with another communicator.
# fmt: off
PAIR = Range(
    0.45, 0.53, 1.45, 2, "544 MB in a group of 2 on A100 NVLink, NVIDIA/nccl issue 964; 1.45 GiB at the first barrier "
    "of 2 GPUs, ml-engineering", "2023-08")
NVLINK = Range(
    0.50, 0.67, 1.60, 3, "688 MB in groups of 3 and 4 on A100 NVLink, NVIDIA/nccl issue 964; 0.62 by difference on "
    "4 x A100, awslabs/keys_values issue 92; 1.6 GB, NVIDIA/nccl issue 864", "2023-08")
NVLINK4 = Range(
    0.50, 1.00, 1.79, 2, "H100: 1.06 GB with the context, NVIDIA/nccl issue 1685; 1.79 GiB more with 2 GPUs than with "
    "1, vllm-project/vllm pull request 10511 (its own buffers included)", "2025-04")
NO_NVLINK = Range(
    0.05, 0.25, 0.80, 0, "not measured: few channels over PCIe or host memory, scaled from NVLink; memory is linear in "
    "channels, NVIDIA/nccl issue 986", "2023-09")
BETWEEN_NODES = Range(
    0.0, 0.20, 1.00, 0, "more with each network adapter, no figure given, NVIDIA/nccl issue 818", "2023-04")
ONE_RANK = Range(
    0.0, 0.05, 0.50, 1, "512 MiB asked for one rank on B300 (NCCL 2.28.9), NVIDIA/nccl issue 2363", "2026")
ALL_TO_ALL = Range(
    0.50, 1.50, 3.05, 1, "3.28 GB more after the first all-to-all on 8 x H100, NVIDIA/nccl issue 1685", "2025-04")
MESH_PER_MODULE = Range(
    0.50, 0.67, 13.0, 1, "14 GB between reserved and nvidia-smi with an integer reshard_after_forward, "
    "pytorch/pytorch issue 147179", "2025-02")
# fmt: on

# (reserved - allocated) / allocated by engine: ratios, 10 %, 50 % and 90 % quantiles of docs/evidence/runtime.py. High
# is what an allocator keeps that has room to; near a full card it gives blocks back before it fails (``reserve``).
_TRAINER = "Hugging Face Trainer on A100-80GB, torch 2.4 (fms-acceleration benchmarks)"
RESERVE = {
    "torch": Range(0.08, 0.16, 0.41, 26, f"1 GPU: {_TRAINER}; pytorch/pytorch issue 40989", "2024-10"),
    "ddp": Range(0.08, 0.16, 0.41, 0, "not measured: as on 1 GPU", "2024-10"),
    "fsdp1": Range(0.14, 0.34, 0.62, 39, f"{_TRAINER}; FSDP paper (arXiv 2304.11277); pytorch/torchtitan pull request "
                   "165; TensorAuto/OpenTau pull request 273; AnswerDotAI/fsdp_qlora; llama-recipes", "2024-10"),
    "fsdp2": Range(0.08, 0.20, 0.36, 2, "pytorch/torchtitan pull request 165, against active memory; low as on 1 GPU",
                   "2024-03"),
    "deepspeed": Range(0.01, 0.08, 0.41, 2, "0.01 with ZeRO-2, TensorAuto/OpenTau pull request 273; expected and high "
                       "as the low and high of 1 GPU, for models with large logits", "2025"),
}  # fmt: skip


def context_range(gpu: Gpu) -> Range:
    """GiB of the context on a card."""
    return CONTEXT.get(gpu.compute_capability or "", CONTEXT_ELSEWHERE)


def communicator_range(cluster: Cluster, ranks: int) -> Range:
    """GiB of one communicator of so many neighbouring ranks."""
    if ranks <= 1:
        return ONE_RANK
    if not cluster.has_nvlink:
        inside = NO_NVLINK
    elif (cluster.gpu.compute_capability or "").split(".")[0] in ("9", "10", "12"):
        inside = NVLINK4
    else:
        inside = PAIR if ranks == 2 else NVLINK
    return inside if ranks <= cluster.gpus_per_node else _sum(inside, BETWEEN_NODES)


def _sum(one: Range, other: Range) -> Range:
    return Range(
        one.low + other.low, one.expected + other.expected, one.high + other.high, min(one.n, other.n),
        f"{one.source}; between nodes: {other.source}", max(one.date, other.date),
    )  # fmt: skip


_KNOWN: dict[tuple[Cluster, Settings], tuple[Overhead, ...]] = {}  # settings belong to one strategy


def overheads(run: Run) -> tuple[Overhead, ...]:
    """Context and each communicator of a rank (R.3), in bytes; none on a CPU. The same for every batch and sequence."""
    if run.settings.device != "cuda":
        return ()
    key = (run.cluster, run.settings)
    found = _KNOWN.get(key)
    if found is None:
        if len(_KNOWN) >= MOST_KNOWN:
            _KNOWN.clear()  # another thread may do it at any time: read once, above
        own = run.cluster.measured
        context = _measured("context", own, "context_bytes") if own else None
        found = (context or _overhead("context", context_range(run.cluster.gpu)), *_communicators(run))
        _KNOWN[key] = found
    return found


def _overhead(name: str, found: Range, certain: bool = True) -> Overhead:
    low = found.low * GIB if certain else 0.0
    return Overhead(name, low, found.expected * GIB, found.high * GIB, f"{found.source} (n={found.n}, {found.date})")


def _measured(name: str, own: Calibration, quantity: str, certain: bool = True) -> Overhead | None:
    """What this machine measured, where it did."""
    found = own.get(quantity)
    if found is None:
        return None
    return Overhead(name, found.low if certain else 0.0, found.value, found.high, f"{own.source} (n={found.n})")


def _communicators(run: Run) -> Iterator[Overhead]:
    """One for each process group over which a rank's engine communicates.

    DDP and FSDP use the world group; hybrid sharding adds a group of shards and one of replicas. DeepSpeed reduces over
    a copy of the world group (deepspeed/utils/groups.py ``_clone_world_group``), while its stack's barriers and
    gathers use the world group itself. ZeRO++ and MiCS add their own.
    """
    engine, knobs, ranks = run.strategy.engine, run.settings.knobs, run.ranks
    if engine == "torch":
        return

    own = run.cluster.measured

    def group(name: str, size: int, certain: bool = True) -> Overhead:
        if own is not None and 1 < size <= run.cluster.gpus_per_node:
            measured = _measured(f"communicator: {name}", own, "communicator_bytes", certain)
            if measured is not None:
                return measured
        return _overhead(f"communicator: {name}", communicator_range(run.cluster, size), certain)

    yield group("all ranks", ranks)
    if run.strategy.sharding == "hybrid-shard":
        yield group("shards", run.shards)
        yield group("replicas", _across(run, ranks // run.shards))
    if type(knobs.get("reshard_after_forward")) is int and run.strategy.base == "fsdp-full-shard":
        yield _overhead("communicator: after forward", MESH_PER_MODULE)
    if engine != "deepspeed":
        return
    yield group("DeepSpeed's copy of all ranks", ranks, certain=False)
    hpz, mics = int(knobs.get("hpz", 1)), int(knobs.get("mics", 0))
    if hpz > 1:
        yield group("ZeRO++ secondary shards", min(hpz, ranks))
    if mics:
        yield group("MiCS shards", min(mics, ranks))
        yield group("MiCS replicas", _across(run, ranks // min(mics, ranks)))
    if knobs.get("quantized_gradients") and run.cluster.nodes > 1:
        yield _overhead("communicator: ZeRO++ all-to-all", ALL_TO_ALL)


def _across(run: Run, replicas: int) -> int:
    """Ranks that a group of ``replicas`` spans, one of each shard group: past a node's GPUs it crosses nodes."""
    return replicas if replicas <= 1 else min(replicas * run.shards, run.ranks)


# Persistent cuBLAS workspace of one handle and stream, in bytes; inside torch's counters.
# Source: aten/src/ATen/cuda/CublasHandlePool.cpp, parseChosenWorkspaceSize (:4096:2:16:8, 32 MiB on Hopper; Blackwell
# with pytorch pull request 153556; ROCm 32 MiB, 128 MiB on gfx94x and gfx95x), read 2026-09.
SMALL_WORKSPACE = 2 * 4096 * 1024 + 8 * 16 * 1024
LARGE_WORKSPACE = 32 * MIB
# A handle belongs to a thread: one for forward, one for the autograd thread that runs backward and recomputation.
HANDLES = 2
BLACKWELL_SINCE = (2, 9)


def cublas_workspace(run: Run) -> tuple[Term, ...]:
    """The workspace that matrix products hold from the first step on, formula R.1; a term of every instant but ``load``.

    ``HANDLES`` x 8.125 MiB, 32 MiB from Hopper on: ``2 * 8519680 == 17039360`` bytes on an A100. cublasLt (products
    with a bias) shares it from torch 2.11 on (pytorch pull request 168175); before that it took another 1 MiB a
    handle, which is left out. Empty on a CPU.
    """
    if run.settings.device != "cuda":
        return ()
    size = workspace_bytes(run.cluster.gpu.compute_capability, run.settings.versions.get("torch", ""))
    return (Term("cublas workspace", "workspace", HANDLES * size, f"{HANDLES} handles x {size} bytes"),)


def workspace_bytes(compute_capability: str | None, torch_version: str = "") -> int:
    """Bytes of one cuBLAS workspace. An unknown card counts as one of the newest."""
    if compute_capability is None:
        return LARGE_WORKSPACE
    if compute_capability.startswith("gfx"):
        return 128 * MIB if compute_capability[:5] in ("gfx94", "gfx95") else LARGE_WORKSPACE
    major = int(compute_capability.split(".")[0])
    if major == 9 or (major > 9 and _version(torch_version) >= BLACKWELL_SINCE):
        return LARGE_WORKSPACE
    return SMALL_WORKSPACE


def _version(text: str) -> tuple[int, ...]:
    """``2.13.0+cpu`` -> (2, 13); what cannot be read counts as newest."""
    parts = text.split(".")[:2]
    return tuple(int(p) for p in parts) if len(parts) == 2 and all(p.isdecimal() for p in parts) else (99, 0)


def reserve(run: Run, allocated: Interval) -> Interval:
    """What the allocator takes from the card for so many bytes of tensors, R.2: ``allocated`` and the blocks it keeps.

        reserved = allocated + min(ratio x allocated, capacity - allocated - runtime.high)

    with the ratio of the engine (``RESERVE``), and nothing below 0: when the tensors fit, so does what is reserved,
    because cached blocks are returned before an allocation fails. On a CPU there is no such allocator.
    """
    if run.settings.device != "cuda":
        return allocated
    low, middle, high = _shares(run)
    ceiling = run.cluster.gpu.memory_bytes - sum([o.high for o in overheads(run)])

    def reserved(tensors: float, share: float) -> float:
        return tensors + max(0.0, min(share * tensors, ceiling - tensors))

    return Interval(
        reserved(allocated.low, low), reserved(allocated.expected, middle), reserved(allocated.high, high)
    )  # fmt: skip


def _shares(run: Run) -> tuple[float, float, float]:
    """What the allocator keeps for a byte of tensors: as this machine measured it, else by engine."""
    table, own = RESERVE[run.strategy.engine], run.cluster.measured
    measured = own.get(f"reserve_ratio_{run.strategy.engine}") if own else None
    return (measured.low, measured.value, measured.high) if measured else (table.low, table.expected, table.high)
