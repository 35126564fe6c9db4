"""Every constant of the time model: value, unit, range, source, and the fit where it was fitted.

``low`` and ``high`` are the ends of the interval that a prediction carries; they are what sources or fits disagree
by, not a confidence level. Rows with ``fit`` come out of ``docs/evidence/time_fit.py``, which prints them anew. No
constant belongs to a model or to a source of measurements.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from estimators.values import dataclass, replace


@dataclass(frozen=True, slots=True)
class Fit:
    """How a constant was fitted: on which rows, how many, mean error with one model size held out, when."""

    data: str
    n: int
    error: float
    date: str


@dataclass(frozen=True, slots=True)
class Constant:
    """low <= value <= high in ``unit``."""

    value: float
    low: float
    high: float
    unit: str
    source: str
    fit: Fit | None = None


FSDP_ROWS = Fit("dense full training under FSDP on A100 and H100, 1B and up: llm-foundry, torchtitan, fms-fsdp, "
                "fms-acceleration", 79, 0.053, "2026-11")  # fmt: skip

# Share of the datasheet's dense rate that the best matrix product reaches, where the catalogue has no measurement.
MATMUL_SHARE = {
    "Volta": Constant(0.56, 0.45, 0.65, "of peak", "ZeRO-Infinity (arXiv 2104.07857): 62-78 of 125 TFLOPS"),
    "Turing": Constant(0.56, 0.35, 0.75, "of peak", "not measured: as Volta, wider"),
    "consumer": Constant(
        0.95,
        0.70,
        1.10,
        "of peak",
        "RTX 3090 and 4090 rows of fsdp_qlora and torchtune, compute bound: their clocks exceed the datasheet's",
        Fit("consumer rows", 8, 0.15, "2026-11"),
    ),
    "fp32": Constant(
        0.90,
        0.75,
        0.97,
        "of peak",
        "not measured: plain fp32 units are easily kept busy; TF32 is off by "
        "default in torch (torch.backends.cuda.matmul.allow_tf32) and several times faster",
    ),
    "elsewhere": Constant(0.80, 0.55, 0.95, "of peak", "not measured: middle of the cards that were (0.51-0.97)"),
}
MEASURED_MATMUL = Constant(1.0, 0.97, 1.02, "of the catalogue's best measured product",
                           "shape efficiency above 128 GFLOP, Calculon's A100 file: 0.95-0.99")  # fmt: skip

# Share of the datasheet's rate that causal attention kernels reach, forward and backward together.
ATTENTION_SHARE = {
    "Ampere": Constant(0.337, 0.30, 0.38, "of peak", "A100, FlashAttention-2", FSDP_ROWS),
    "Hopper": Constant(0.183, 0.165, 0.22, "of peak", "H100, FlashAttention-2; 3 is faster", FSDP_ROWS),
    "fp32": Constant(0.60, 0.30, 0.85, "of peak", "not measured: no tensor units to starve"),
    "elsewhere": Constant(0.25, 0.12, 0.40, "of peak", "not measured: between A100 and H100"),
}

# Activations are moved so many times per pass for each element that enters or leaves a matrix product.
ACTIVATION_MOVES = Constant(4.79, 4.3, 5.4, "moves per element", "eager kernels", FSDP_ROWS)
COMPILED_MOVES = Constant(1.2, 0.6, 3.0, "moves per element", "torch.compile fuses norms and activations", FSDP_ROWS)
BANDWIDTH_SHARE = Constant(0.80, 0.70, 0.92, "of peak memory bandwidth",
                           "Calculon's A100 file: 0.90-0.95 at 100 MB, 0.75-0.9 at 10 MB")  # fmt: skip

# Bytes moved per logit, forward and backward, by how the loss treats logits: formula T.6.
LOGIT_BYTES = {
    "plain": Constant(34, 26, 48, "bytes", "16-bit logits, fp32 copy, log-softmax and their gradients, counted"),
    "in-place": Constant(14, 10, 22, "bytes", "one pass that overwrites 16-bit logits, counted"),
    "compiled": Constant(16, 12, 30, "bytes", "fused softmax over 16-bit logits, counted"),
    "fused": Constant(10, 8, 20, "bytes", "chunks that are written once and read by two products, counted"),
    "chunked": Constant(24, 14, 36, "bytes", "as plain without the whole fp32 copy, counted"),
}
SCORE_BYTES = Constant(25, 16, 45, "bytes per score and pass", "eager: scale, mask, softmax, dropout, counted")
BACKWARD_SCORES = 1.7  # passes over the scores in backward: softmax, dropout and mask, without the fp32 cast

# Time that collectives cost even while they are hidden (multiprocessors and bandwidth are shared), by their duration.
INSIDE_COST = Constant(0.80, 0.60, 1.00, "of duration", "collectives inside a node", FSDP_ROWS)
BETWEEN_COST = Constant(0.20, 0.00, 0.42, "of duration",
                        "0.42 fitted on llm-foundry alone, 0 on fms-fsdp: not settled", FSDP_ROWS)  # fmt: skip
LINK_SHARE = Constant(0.80, 0.72, 0.85, "of the link", "nccl-tests, ml-engineering: 78 % A100, 80-82 % H200")
NIC_SHARE = Constant(0.80, 0.60, 0.95, "of the adapter", "nccl-tests, ml-engineering: 4 nodes of B200, 74-95 %")
USUAL_LINK = {
    "Volta": Constant(150e9, 75e9, 150e9, "bytes/s", "NVLink2 of the catalogue's cards"),
    "Ampere": Constant(300e9, 56e9, 300e9, "bytes/s", "NVLink3 of the catalogue's cards; bridges have less"),
    "Hopper": Constant(450e9, 200e9, 450e9, "bytes/s", "NVLink4 of the catalogue's cards; export cards have less"),
    "Blackwell": Constant(900e9, 450e9, 900e9, "bytes/s", "NVLink5 of the catalogue's cards"),
    "elsewhere": Constant(150e9, 50e9, 450e9, "bytes/s", "not known"),
}
PCIE_SHARE = Constant(
    0.13,
    0.05,
    0.40,
    "of a x16 slot, one way",
    "RTX 3090 and 4090 rows of fsdp_qlora and torchtune: 1.6-4.9 GB/s a card through host memory; "
    "5-12 are reported elsewhere",
    Fit("consumer rows bound by links", 4, 0.3, "2026-11"),
)
CALL_INSIDE = Constant(60e-6, 30e-6, 90e-6, "s per call and turn",
                       "nccl-tests curve of 8 x A100: time beyond bytes / rate at 1-64 MiB")  # fmt: skip
CALL_BETWEEN = Constant(250e-6, 120e-6, 450e-6, "s per call and turn",
                        "nccl-tests curve of 4 nodes of B200: time beyond bytes / rate at 1-256 MiB")  # fmt: skip
RING_HOP = Constant(
    19e-6,
    5e-6,
    30e-6,
    "s per node of a ring and call",
    "Calculon: 20 us over InfiniBand; llm-foundry's H100 steps grow by 18-26 from 128 to 512 GPUs",
)
# What a node's adapters give each GPU where nobody said: bytes/s one way, by what the card is usually bought with.
USUAL_NIC = {
    "Hopper": Constant(50e9, 12.5e9, 50e9, "bytes/s", "DGX H100: 400 Gbit/s per GPU; clouds from 100"),
    "Blackwell": Constant(50e9, 25e9, 100e9, "bytes/s", "DGX B200: 400 Gbit/s per GPU; B300 800"),
    "Ampere": Constant(25e9, 6.25e9, 25e9, "bytes/s", "DGX A100: 200 Gbit/s per GPU; AWS P4d 50"),
    "elsewhere": Constant(6.25e9, 0.3e9, 25e9, "bytes/s", "not known: from 10 Gbit/s a node to 200 a card"),
}

OPTIMIZER_PASSES = {
    "fused": Constant(1.0, 1.0, 1.3, "times the bytes of one fused pass", "one kernel reads and writes each once"),
    "foreach": Constant(2.6, 1.8, 3.4, "times the bytes of one fused pass", "counted: 11 foreach operations of AdamW"),
}
NEAR_FULL = Constant(0.90, 0.85, 0.95, "of the card", "allocator retries: FSDP paper (arXiv 2304.11277), llm-foundry")
NEAR_FULL_COST = Constant(1.0, 1.0, 1.35, "of the step", "20-25 % in llm-foundry rows, up to 2x in the FSDP paper")
# What is left of an interval when every constant is at its end: residuals of rows by kind of work. Expected values stay
# at 1: none of these rows is fitted, their errors stand in the report of ``validate.speed``.
MODEL_ERROR = {
    "full": Constant(1.0, 0.96, 1.04, "of the step", "residual error of the fit", FSDP_ROWS),
    "adapters": Constant(1.0, 0.88, 1.30, "of the step", "LoRA rows: kernels of adapters differ by stack"),
    "packed": Constant(1.0, 0.88, 1.40, "of the step", "QLoRA rows: kernels that unpack weights differ by stack"),
}
ENGINE_ERROR = {
    "deepspeed": Constant(
        1.0, 0.96, 1.40, "of the step", "ZeRO rows run slower than the model says, by 25 % on average"
    ),
    "elsewhere": Constant(1.0, 1.0, 1.0, "of the step", "the engines of the fit"),
}

# Host: per node unless it says otherwise.
HOST_COPY = Constant(
    80e9,
    40e9,
    160e9,
    "bytes/s per node",
    "ZeRO-Infinity (arXiv 2104.07857): 16 GPUs of a DGX-2 get 3.0 GB/s each; newer nodes have more",
)
HOST_SLOT_SHARE = Constant(0.76, 0.60, 0.85, "of a x16 slot", "ZeRO-Infinity: 12 GB/s for one GPU of 15.75")
CPU_ADAM = Constant(1.5e9, 0.35e9, 4.5e9, "parameters/s per node",
                    "ZeRO-Offload (arXiv 2101.06840): 3.3-4.5 G on 2 x Xeon 8168; threads unpinned or few channels: "
                    "DeepSpeed issues 1635 (62 M on a desktop), 6834")  # fmt: skip
# Where the node's CPU was described: Adam moves so many bytes a parameter through DRAM, and a core does so many of them.
ADAM_BYTES = 30.0
DRAM_SHARE = Constant(0.46, 0.30, 0.70, "of the DRAM bandwidth of a node",
                      "ZeRO-Offload: 3.3-4.5 G parameters/s x 30 bytes, of 256 GB/s (2 x Xeon 8168, 12 x DDR4-2666)")  # fmt: skip
CORE_ADAM = Constant(83e6, 31e6, 150e6, "parameters/s per core",
                     "ZeRO-Offload: 4 G on the 48 cores of 2 x Xeon 8168, where DRAM binds; torch's on one thread 31 M "
                     "(FSDP2 with 8 ranks: 537 M parameters in 17.2 s)")  # fmt: skip
TORCH_CPU_ADAM = Constant(0.5e9, 0.06e9, 0.7e9, "parameters/s per node",
                          "ZeRO-Offload: torch's is about 6 times slower; pytorch issue 74588")  # fmt: skip
NVME_READ = Constant(10e9, 3e9, 27e9, "bytes/s per node", "DeepNVMe: 4 x Gen4 10, 4 x Gen5 27")
NVME_WRITE = Constant(5e9, 1.5e9, 11e9, "bytes/s per node", "DeepNVMe: 4 x Gen4 5, 4 x Gen5 11")

HOST_HIDDEN = Constant(0.3, 0.0, 1.0, "of duration", "copies over PCIe beside compute: how much shows is not measured")

DISPATCH = Constant(8e-6, 4e-6, 12e-6, "s per kernel", "host time to launch one operation from Python")
KERNELS_PER_PRODUCT = Constant(10.0, 6.0, 14.0, "kernels", "operations around one matrix product of an eager block")
COMPILED_LAUNCHES = Constant(0.4, 0.2, 0.8, "of an eager block's launches", "torch.compile fuses what lies between")
FETCH = Constant(450e-6, 150e-6, 800e-6, "s of host time per product and pass",
                 "ZeRO-3's hooks fetch and release each module: Qwen and DeepSpeed rows of 256-512 tokens",
                 Fit("ZeRO-3 rows of 256-512 tokens", 5, 0.3, "2026-11"))  # fmt: skip
DEQUANT_SHARE = {
    "gptq4": Constant(0.15, 0.08, 0.4, "of peak memory bandwidth", "Qwen rows of 512 tokens, 14B and 72B",
                      Fit("Qwen GPTQ rows of 512 tokens", 2, 0.1, "2026-11")),
    "elsewhere": Constant(0.5, 0.3, 0.8, "of peak memory bandwidth", "not measured: 4-bit weights expanded to 16 bit"),
}  # fmt: skip
MOE_COST = Constant(1.6, 1.1, 4.0, "times the experts' products", "routing, permutation, ragged products: not measured")

# The constants that a fit may move, by name: attention by generation of card, the rest by their name here.
FITTED = ("Ampere", "Hopper", "ACTIVATION_MOVES", "COMPILED_MOVES", "INSIDE_COST", "BETWEEN_COST")


def fitted() -> dict[str, float]:
    """The fitted constants as they stand."""
    return {name: (ATTENTION_SHARE.get(name) or globals()[name]).value for name in FITTED}


@contextmanager
def replaced(values: Mapping[str, float]) -> Iterator[None]:
    """The table with other values, for fits and for scores of what a fit has not seen; restored afterwards."""
    before = fitted()
    _put(values)
    try:
        yield
    finally:
        _put(before)


def _put(values: Mapping[str, float]) -> None:
    from estimators.time import card, phases

    for name, value in values.items():
        if name in ATTENTION_SHARE:
            ATTENTION_SHARE[name] = replace(ATTENTION_SHARE[name], value=float(value))
        else:
            globals()[name] = replace(globals()[name], value=float(value))
    phases.costs.cache_clear()
    card.rates.cache_clear()
