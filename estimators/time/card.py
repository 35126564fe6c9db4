"""What a card can do: rates from the catalogue, or from the user, or the name of the figure that is missing."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from estimators.cluster import Gpu, gpu_fact
from estimators.time.constants import ATTENTION_SHARE, BANDWIDTH_SHARE, MATMUL_SHARE, MEASURED_MATMUL, Constant
from estimators.values import dataclass

if TYPE_CHECKING:
    from estimators.calibration import Calibration
    from estimators.cluster import Cluster

COMPUTE_RATE = {"bf16": "bf16", "fp16": "fp16", "fp32": "fp32"}


@dataclass(frozen=True, slots=True)
class Unknown:
    """No time can be given; ``missing`` names each figure, in words and with the flag that supplies it."""

    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rates:
    """FLOP/s and bytes/s of one card. ``matmul`` and ``attention`` are (low, expected, high) of what kernels reach."""

    peak: float
    matmul: tuple[float, float, float]
    attention: tuple[float, float, float]
    bandwidth: float
    link: float | None  # bytes/s one way, all links of a card
    slot: float  # bytes/s one way of its PCIe slot, or of the link to its CPU
    power_w: float | None
    generation: str
    notes: tuple[str, ...]
    host: tuple[float, float, float] | None = None  # (fast, expected, slow) bytes/s per GPU, where it was measured
    adam: tuple[float, float, float] | None = None  # (fast, expected, slow) parameters/s per node, likewise


@lru_cache(maxsize=512)
def rates(
    gpu: Gpu,
    dtype: str,
    tflops: float | None = None,
    bandwidth: float | None = None,
    own: Calibration | None = None,
) -> Rates | Unknown:
    """Rates for products in ``dtype``. ``tflops`` (dense, of that dtype) and ``bandwidth`` (GB/s) override; ``own`` is
    what this machine measured: products as they are, and a copy, which reaches 0.92 of peak bandwidth at best.

    H100 in bf16: peak 989e12, best measured product 794.5e12, 3.35e12 bytes/s.
    """
    peak = tflops or gpu_fact(gpu, f"dense_tflops.{COMPUTE_RATE[dtype]}")
    memory = bandwidth or gpu_fact(gpu, "memory_bandwidth_gb_per_s")
    products = own.get("matmul_flops_per_s") if own and dtype != "fp32" and not tflops else None
    copy = own.get("copy_bytes_per_s") if own and not bandwidth else None
    if products is not None:
        peak = peak or products.high / 1e12
    if copy is not None:
        memory = copy.value / BANDWIDTH_SHARE.high / 1e9
    missing = []
    if not peak:
        missing.append(f"dense {dtype} rate of {gpu.name} (give --tflops)")
    if not memory:
        missing.append(f"memory bandwidth of {gpu.name} (give --bandwidth, GB/s)")
    if missing:
        return Unknown(tuple(missing))
    generation = str(gpu_fact(gpu, "architecture") or "")
    family = _family(generation)
    measured = gpu_fact(gpu, "measured_best_bf16_matmul_tflops") if dtype != "fp32" and not tflops else None
    notes: tuple[str, ...] = ()
    if products is not None:
        matmul = products.low, products.value, products.high
    elif measured:
        matmul = _times(measured * 1e12, MEASURED_MATMUL)
    else:
        share = _measured_share(gpu) if tflops and dtype != "fp32" else None
        kind = _kind(gpu, family, dtype)
        share = share or MATMUL_SHARE[kind]
        matmul = _times(peak * 1e12, share)
        notes = (f"no matrix product was measured on {gpu.name}: {share.value:g} of its datasheet is assumed, wide",)
    kernels = "fp32" if dtype == "fp32" else family if family in ATTENTION_SHARE else "elsewhere"
    attention = _times(peak * 1e12, ATTENTION_SHARE[kernels])
    slot = gpu_fact(gpu, "pcie.unidirectional_gb_per_s") or 15.75
    link = gpu_fact(gpu, "link.unidirectional_gb_per_s")
    return Rates(peak * 1e12, matmul, attention, memory * 1e9, link * 1e9 if link else None, slot * 1e9,
                 gpu_fact(gpu, "board_power_w"), family, notes, own.three("host_copy_bytes_per_s") if own else None,
                 own.three("cpu_adam_params_per_s") if own else None)  # fmt: skip


def rates_of(
    cluster: Cluster, dtype: str, tflops: float | None = None, bandwidth: float | None = None
) -> Rates | Unknown:
    """Rates of a cluster's card: as given here, as the user gave them with the cluster, as measured, as catalogued."""
    return rates(
        cluster.gpu, dtype, tflops or cluster.tflops, bandwidth or cluster.bandwidth_gb_per_s, cluster.measured
    )


def _kind(gpu: Gpu, family: str, dtype: str) -> str:
    """The row of ``MATMUL_SHARE`` for a card whose best product nobody measured."""
    if dtype == "fp32":
        return "fp32"
    return "consumer" if gpu.id.startswith("rtx") else family if family in MATMUL_SHARE else "elsewhere"


def _measured_share(gpu: Gpu) -> Constant | None:
    measured, peak = gpu_fact(gpu, "measured_best_bf16_matmul_tflops"), gpu_fact(gpu, "dense_tflops.bf16")
    if not measured or not peak:
        return None
    share = measured / peak
    return Constant(share, share * MEASURED_MATMUL.low, share * MEASURED_MATMUL.high, "of peak", "catalogue")


def _times(rate: float, share: Constant) -> tuple[float, float, float]:
    return rate * share.low, rate * share.value, rate * share.high


def _family(architecture: str) -> str:
    """The catalogue's word for an architecture without its suffix: ``Ampere (GA102)`` -> ``Ampere``."""
    return architecture.split()[0].split("(")[0].strip() if architecture else ""
