"""Section G, cards, environment and builds."""

from __future__ import annotations

from selector.checks.registry import ERROR, SOURCE, THREAD, WARNING, Hits, rule
from selector.checks.setup import Setup

AMPERE = 8.0
ADA = 8.9
SMALL_MICRO_BATCH = 4


@rule(
    "bf16-needs-ampere",
    ERROR,
    fix="fp16",
    confirmed=SOURCE,
    source="FastChat#399, LMFlow#88, LMFlow#251, dolly#11, Phi3-Vision#21; transformers training_args.py",
)
def bf16_card(setup: Setup) -> Hits:
    """bf16 on a card before Ampere (V100, T4, 2080Ti, P100): ValueError."""
    name, block, key = setup.precision_at
    if name == "bf16" and setup.cluster and setup.cluster.gpu.bf16 is False:
        card = setup.cluster.gpu
        yield block.hit(key, f"bf16 on {card.label} (compute capability {card.compute_capability})")


@rule("tf32-needs-ampere", ERROR, fix="false", confirmed=SOURCE, source="FastChat#399; transformers training_args.py")
def tf32(setup: Setup) -> Hits:
    """tf32 on a card before Ampere: ValueError."""
    if setup.args.flag("tf32") and setup.capability is not None and setup.capability < AMPERE:
        yield setup.args.hit("tf32", f"true on compute capability {setup.capability}", setup.args.put("tf32", False))


@rule("flash-attn-arch", WARNING, fix="sdpa", confirmed=THREAD, source="FastChat#850, LLaVA#284")
def flash(setup: Setup) -> Hits:
    """FlashAttention-2 below compute capability 8.0: it does not run."""
    key = setup.args.first("attn_implementation", "attn_impl", "flash_attn", "flash_attention")
    word = setup.args.word(key) if key else ""
    asked = word in ("flash_attention_2", "flash_attn", "fa2", "flash_attention_3") or (
        key == "flash_attention" and setup.args.get(key) is True
    )
    if key and asked and setup.capability is not None and setup.capability < AMPERE:
        yield setup.args.hit(
            key, f"FlashAttention-2 on compute capability {setup.capability}", setup.args.put(key, "sdpa")
        )


@rule("fp8-arch", ERROR, fix="bf16", confirmed=SOURCE, source="peft#306; accelerate utils/dataclasses.py")
def fp8(setup: Setup) -> Hits:
    """mixed_precision fp8 on a card before Ada and Hopper: error."""
    if setup.precision_at[0] == "fp8" and setup.capability is not None and setup.capability < ADA:
        edit = setup.accel.put("mixed_precision", "bf16")
        yield setup.accel.hit("mixed_precision", f"fp8 on compute capability {setup.capability}", edit)


@rule(
    "rtx40-p2p-env",
    ERROR,
    fix="NCCL_P2P_DISABLE=1 NCCL_IB_DISABLE=1, or accelerate launch",
    confirmed=SOURCE,
    source="fluxgym#283, accelerate#2328, nccl-tests#117, OpenRLHF#1064; accelerate utils/environment.py",
    corrected="accelerate sets both itself when it launches; with newer drivers nothing fails: a warning.",
)
def rtx40(setup: Setup) -> Hits:
    """Several RTX 40xx cards, not started by accelerate launch, without NCCL_P2P_DISABLE and NCCL_IB_DISABLE:
    NotImplementedError or a hang. A 3090 with NVLink must keep P2P."""
    if setup.cluster is None or setup.cluster.ranks < 2 or not setup.cluster.gpu.id.startswith("rtx-40") or setup.accel:
        return
    unset = [name for name in ("NCCL_P2P_DISABLE", "NCCL_IB_DISABLE") if setup.machine.env.get(name) != "1"]
    block = setup.args or setup.ds
    if unset and block:
        yield block.hit("", f"{setup.cluster.gpu.label}: {' and '.join(unset)} not set", severity=WARNING)


@rule("nccl-ib-disabled-multinode", WARNING, fix="unset it", confirmed=THREAD, source="ms-swift#1825")
def ib_disabled(setup: Setup) -> Hits:
    """Several nodes with NCCL_IB_DISABLE=1, or P2P switched off where there is NVLink: ten times slower."""
    block = setup.accel or setup.args or setup.ds
    if setup.nodes > 1 and setup.machine.env.get("NCCL_IB_DISABLE") == "1" and block:
        yield block.hit("num_machines", f"{setup.nodes} nodes and NCCL_IB_DISABLE=1 in the environment")
    nvlink = setup.cluster is not None and "NVLink" in (setup.cluster.gpu.link or "")
    if nvlink and setup.machine.env.get("NCCL_P2P_DISABLE") == "1" and block:
        yield block.hit("num_processes", "NCCL_P2P_DISABLE=1 in the environment switches NVLink off")


@rule(
    "no-nvlink-sharding",
    WARNING,
    fix="LoRA or DDP, stage 2, a larger micro-batch",
    confirmed=THREAD,
    source="litgpt#607, OLMo#762",
)
def pcie_sharding(setup: Setup) -> Hits:
    """Cards without NVLink with FULL_SHARD or ZeRO-3 and a small micro-batch: bound by communication."""
    if setup.cluster is None or setup.cluster.ranks < 2 or not setup.shards_params or setup.micro > SMALL_MICRO_BATCH:
        return
    if not setup.cluster.has_nvlink and setup.cluster.gpus_per_node > 1 and not setup.offloads:
        size = f": {2 * setup.params / 1e9:.0f} GB in each forward" if setup.params else ""
        message = f"{setup.cluster.gpu.label} has no NVLink, and each GPU gathers the model{size}"
        yield setup.fsdp.hit("version", message) if setup.fsdp else setup.at_stage(message)


@rule(
    "cpu-adam-build",
    WARNING,
    fix="ds_report; a toolkit of torch's CUDA version, a compiler, ninja",
    confirmed=THREAD,
    source="DeepSpeed#1846, DeepSpeed#1077, DeepSpeed#2901",
)
def cpu_adam(setup: Setup) -> Hits:
    """The optimizer is offloaded and CPU Adam cannot be built here: the error says ds_opt_adam only."""
    kind, block, key = setup.offload("optimizer")
    if not kind or not setup.machine.has_gpu:
        return
    mine, theirs = setup.machine.cuda_toolkit, setup.machine.torch_cuda
    if mine and theirs and mine.split(".")[:2] != theirs.split(".")[:2]:
        yield block.hit(key, f"the CUDA toolkit is {mine} and torch was built with {theirs}")
    elif not setup.machine.has_compiler:
        yield block.hit(key, "no C++ compiler or no ninja on this machine")


@rule("aio-missing", ERROR, fix="libaio's headers; ds_report shows async_io", confirmed=THREAD, source="DeepSpeed#2503")
def aio(setup: Setup) -> Hits:
    """An offload to NVMe on a machine without libaio: async_io cannot be built."""
    for role in ("optimizer", "param"):
        kind, block, key = setup.offload(role)
        if kind == "nvme" and setup.machine.has_gpu and not setup.machine.has_libaio:
            yield block.hit(key, "libaio.h is not on this machine")
            return
