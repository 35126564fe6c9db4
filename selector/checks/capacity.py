"""Section G, whether it fits: these rules ask the estimator, and need --model and --gpus."""

from __future__ import annotations

from estimators.memory import Estimate
from estimators.units import gib
from selector.checks.finding import Hit
from selector.checks.registry import COUNT, ERROR, INFO, THREAD, Hits, rule
from selector.checks.setup import Setup

NEARLY_FULL = 0.85
RESERVE = 2 * 2**30  # NCCL takes up to this outside of torch
HOST_SHARE = 0.9
_FLOOR = ("activations", "logits")


def _at(setup: Setup, message: str) -> Hit:
    if setup.fsdp:
        return setup.fsdp.hit("version", message)
    block, key = setup.stage_at
    return block.hit(key, message) if setup.deepspeed else (setup.args or setup.accel).hit("", message)


def _floor(found: Estimate) -> int:
    """Bytes of the largest instant that no sharding changes: activations and logits."""
    return max(sum(t.bytes for t in i.terms if t.place == "gpu" and t.category in _FLOOR) for i in found.instants)


@rule(
    "host-ram-insufficient",
    ERROR,
    fix="more nodes, an 8-bit optimizer, less offload",
    confirmed=COUNT,
    source="axolotl#1439, DeepSpeed#3448, DeepSpeed#4380, QwenLM/Qwen3#804",
)
def host_ram(setup: Setup) -> Hits:
    """Offloaded states, load copies and the gather at save need more than 90 % of the host's RAM: exit -9."""
    found = setup.estimate
    if found is None or setup.host_bytes is None or not (setup.offloads or setup.fsdp.offloads):
        return
    if found.host.expected > HOST_SHARE * setup.host_bytes:
        worst = max(found.instants, key=lambda i: i.total("host"))
        yield _at(
            setup,
            f"a node needs {gib(found.host.expected, 0)} GiB of host RAM at {worst.name} and has "
            f"{gib(setup.host_bytes, 0)}; the process is killed (exit -9)",
        )


@rule(
    "offload-unneeded",
    INFO,
    fix="remove the offload",
    confirmed=COUNT,
    source="ms-swift#6473, stanford_alpaca#280, DeepSpeed#3901",
)
def unneeded(setup: Setup) -> Hits:
    """The run offloads and fits without: 2 to 5 times slower for nothing."""
    found = setup.estimate
    if found is None or not (found.run.strategy.optimizer or found.run.strategy.params):
        return
    base = found.run.strategy.base
    without = setup.estimate_of(base)
    if without is not None and without.gpu.process.high < without.gpu.capacity:
        yield _at(
            setup,
            f"{base} without offload needs {gib(without.gpu.process.expected)} of {gib(without.gpu.capacity)} GiB",
        )


@rule(
    "gpu-floor-independent-of-n",
    INFO,
    fix="a shorter sequence, a smaller micro-batch, checkpointing",
    confirmed=COUNT,
    source="OpenRLHF#749",
)
def floor(setup: Setup) -> Hits:
    """Activations and logits alone are more than the GPU: more GPUs do not help."""
    found = setup.estimate
    if found is not None and _floor(found) > found.gpu.capacity:
        yield _at(
            setup,
            f"activations and logits take {gib(_floor(found))} of {gib(found.gpu.capacity)} GiB on every GPU, "
            "whatever their number",
        )


@rule(
    "alloc-conf",
    INFO,
    fix="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (not with CUDA IPC)",
    confirmed=THREAD,
    source="torchtune#1185, LLaMA-Factory#5590, SkyRL PR1768",
)
def allocator(setup: Setup) -> Hits:
    """More than 85 % of the GPU is needed and expandable segments are not set: fragments cost gigabytes."""
    found = setup.estimate
    given = setup.machine.env.get("PYTORCH_CUDA_ALLOC_CONF", "") + setup.machine.env.get("PYTORCH_ALLOC_CONF", "")
    if found is None or "expandable_segments:True" in given:
        return
    share = found.gpu.process.expected / found.gpu.capacity
    if NEARLY_FULL < share <= 1:
        yield _at(setup, f"{share:.0%} of {gib(found.gpu.capacity)} GiB, and PYTORCH_CUDA_ALLOC_CONF is not set")


@rule("nccl-reserve", INFO, fix="leave 1 to 2 GiB free", confirmed=THREAD, source="accelerate#3232")
def nccl(setup: Setup) -> Hits:
    """Less than 2 GiB would stay free: NCCL runs out of memory at save."""
    found = setup.estimate
    free = found.gpu.capacity - found.gpu.process.expected if found else -1
    if found is not None and 0 <= free < RESERVE and found.run.ranks > 1:
        yield _at(setup, f"{gib(free)} GiB of {gib(found.gpu.capacity)} stay free")


@rule(
    "first-step-peak",
    INFO,
    fix="plan for the step, not only for backward",
    confirmed=COUNT,
    source="verl PR5364, LLaMA-Factory#5590, LLaMA-Factory#2959",
)
def first_step(setup: Setup) -> Hits:
    """The step is the largest instant and does not fit, while backward does: it fails after a backward."""
    found = setup.estimate
    if found is None or found.peak.name != "step":
        return
    outside = sum(o.expected for o in found.gpu.runtime)
    names = {i.name: i.gpu_bytes for i in found.instants}
    before = names.get("backward", 0)
    if names["step"] + outside > found.gpu.capacity >= before + outside:
        yield _at(
            setup,
            f"backward needs {gib(before)} GiB and the optimizer step {gib(names['step'])} of "
            f"{gib(found.gpu.capacity)}",
        )


@rule(
    "does-not-fit",
    ERROR,
    fix="dist-advisor recommend with the same flags shows what does",
    confirmed=COUNT,
    source="the estimate",
)
def does_not_fit(setup: Setup) -> Hits:
    """The estimate of this configuration is more than the GPU has. (Beside the collected rules.)"""
    found = setup.estimate
    if found is not None and found.verdict == "no":
        yield _at(
            setup,
            f"{found.strategy} needs {gib(found.gpu.process.expected)} GiB on a GPU of "
            f"{gib(found.gpu.capacity)} GiB at {found.peak.name} ({found.reason})",
        )
